"""Deployment and GPU files (TOML). File name = id, and every figure names its source."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from specpilot_cli.artifacts.base import Positive, Record
from specpilot_cli.artifacts.deployment import DeploymentRecord, DevicePeaks, Shape
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.core.paths import share_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

R = TypeVar("R", bound=Record)


class _DeploymentFile(Record):
    id: str
    engine: str
    model: str
    drafter: str
    gpu: str
    requests: str
    shape: Shape
    server_args: tuple[str, ...]
    mode: Literal["server", "offline"] = "server"
    """How the engine runs: as its HTTP server, or as SGLang's offline Engine."""


class _Figure(Record):
    value: Positive
    source: str = Field(min_length=1)


class _DeviceFile(Record):
    id: str
    title: str
    peak_flop_per_s: _Figure | None = None
    peak_bytes_per_s: _Figure | None = None
    measured_bytes_per_s: _Figure | None = None


@dataclass(frozen=True)
class Deployment:
    """A deployment file, resolved."""

    record: DeploymentRecord
    requests: str
    """Name of its default request set."""


def _find(room: str, ref: str) -> Path:
    if ref.endswith(".toml") or "/" in ref:
        return Path(ref)
    folder = share_dir("profiles") / room
    path = folder / f"{ref}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.toml"))) or "none"
        raise UsageFault(
            f"There is no {room.removesuffix('s')} '{ref}'.", "", f"Known: {known}; or give a path to a .toml file."
        )
    return path


def parse_toml(path: Path, model: type[R]) -> tuple[R, bytes]:
    """Read and validate a TOML file; also its bytes.

    Raises:
        InputUnusable: unreadable, not TOML, or not a valid `model`.
    """
    try:
        data = path.read_bytes()
        return model.model_validate(_tuples(tomllib.loads(data.decode("utf-8")))), data
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputUnusable(f"{path}: not valid.", f"{where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise InputUnusable(f"{path}: not TOML in UTF-8.", str(error)) from None


def _tuples(value: object) -> object:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def load_deployment(ref: str) -> Deployment:
    """Deployment by id (in `profiles/deployments/`) or by path.

    Raises:
        UsageFault: unknown id. InputUnusable: the file is not valid, or its name is not its id.
    """
    path = _find("deployments", ref)
    file, data = parse_toml(path, _DeploymentFile)
    if file.id != path.stem:
        raise InputUnusable(f"{path}: its id is '{file.id}'.", "File name and id must agree.")
    fields = {name: getattr(file, name) for name in DeploymentRecord.model_fields if name != "file_sha256"}
    if file.mode != "server":
        if not file.engine.startswith("sglang-"):
            raise InputUnusable(f"{path}: its mode is '{file.mode}'.", f"{file.engine} runs as a server only.")
        fields["server_args"] = (f"@mode:{file.mode}", *file.server_args)
    return Deployment(DeploymentRecord(**fields, file_sha256=sha256_bytes(data)), file.requests)


def load_device(ref: str) -> DevicePeaks | None:
    """Peaks of a GPU by id or path; None where the file gives none (they are then measured on the machine)."""
    path = _find("gpus", ref)
    file, _ = parse_toml(path, _DeviceFile)
    if file.id != path.stem:
        raise InputUnusable(f"{path}: its id is '{file.id}'.", "File name and id must agree.")
    if file.peak_flop_per_s is None or file.peak_bytes_per_s is None:
        return None
    measured = file.measured_bytes_per_s
    return DevicePeaks(
        id=file.id,
        peak_flop_per_s=file.peak_flop_per_s.value,
        peak_bytes_per_s=file.peak_bytes_per_s.value,
        measured_bytes_per_s=measured.value if measured else None,
        source=f"{file.peak_flop_per_s.source}; {file.peak_bytes_per_s.source}",
    )
