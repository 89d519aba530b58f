"""The envelope of every artifact, and the rules all records share."""

from __future__ import annotations

import os
import platform
from datetime import datetime
from importlib import metadata
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from specpilot_cli import __version__
from specpilot_cli.core.clock import utc_now
from specpilot_cli.core.digest import harness_sha256

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
GitTree = Annotated[str, Field(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0, le=2**53)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Record(BaseModel):
    """Frozen, strict, closed, without NaN; attribute docstrings become the schema's descriptions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True, validate_by_name=True
    )


class Source(Record):
    """A file that a stage read: what it was called, and the sha256 of the bytes that were read."""

    name: str
    sha256: Sha256
    artifact_schema: str | None = None
    """Schema of the file where it is an artifact, such as `specpilot.profile/1`."""


class Tool(Record):
    """Which SpecPilot wrote this."""

    version: str
    tree: Sha256
    """Digest over the package's own sources (`core.digest.harness_sha256`)."""


class Environment(Record):
    """The machine and its software, as far as a timing can depend on them."""

    platform: str
    cpu: str
    logical_cpus: Count
    memory_bytes: Count
    python: str
    packages: dict[str, str]
    gpus: tuple[str, ...] = ()
    """Name and driver of every visible NVIDIA GPU; empty where there is none."""


class Envelope(Record):
    """Common part of all artifacts. Subclasses fix `schema_` to a Literal and add `body`."""

    schema_: str = Field(alias="schema")
    """`specpilot.<name>/<major>`. Another major is another format."""
    schema_minor: Count = 0
    """Additive changes within the major. A reader of an older minor ignores what it does not know, with a warning."""
    created: datetime
    tool: Tool
    inputs: tuple[Source, ...] = ()
    environment: Environment
    caveats: tuple[str, ...] = ()
    """Overrides and doubts. `seal` refuses inputs that carry any."""
    complete: bool
    """False while the stage still measures: a killed run leaves a readable, incomplete artifact."""

    def body_dict(self) -> dict[str, JsonValue]:
        """The body as plain JSON values, for tables that know no schema."""
        dumped: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        body: dict[str, JsonValue] = dumped["body"]
        return body


def this_tool() -> Tool:
    """The running SpecPilot."""
    return Tool(version=__version__, tree=harness_sha256())


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _package_versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "triton", "sglang", "transformers", "tokenizers", "numpy", "scipy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _gpus() -> tuple[str, ...]:
    try:
        import pynvml  # nvidia-ml-py; only where SGLang or the user installed it

        pynvml.nvmlInit()
    except Exception:  # a missing package, driver or device all mean "no GPU to name"
        return ()
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    count = int(pynvml.nvmlDeviceGetCount())
    return tuple(
        f"{pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i))}, driver {driver}" for i in range(count)
    )


def this_environment() -> Environment:
    """The running machine. Reads package metadata only: no heavy import."""
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Environment(
        platform=platform.platform(),
        cpu=_cpu_name(),
        logical_cpus=os.cpu_count() or 1,
        memory_bytes=pages * size,
        python=platform.python_version(),
        packages=_package_versions(),
        gpus=_gpus(),
    )


def envelope_fields(
    *, inputs: tuple[Source, ...], caveats: tuple[str, ...] = (), complete: bool = True
) -> dict[str, Any]:
    """Keyword arguments of the common part for an artifact that is written now."""
    return {
        "created": utc_now(),
        "tool": this_tool(),
        "inputs": inputs,
        "environment": this_environment(),
        "caveats": caveats,
        "complete": complete,
    }
