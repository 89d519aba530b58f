"""The one way in and the one way out of artifacts."""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Generic, TypeVar, cast

from pydantic import ValidationError

from specpilot_cli.artifacts import registry
from specpilot_cli.artifacts.base import Envelope, Source
from specpilot_cli.core import console
from specpilot_cli.core.clock import utc_now
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault

MAX_BYTES = 512 * 2**20
A = TypeVar("A", bound=Envelope)


@dataclass(frozen=True)
class Loaded(Generic[A]):
    """An artifact, and the digest of the bytes it was read from."""

    artifact: A
    source: Source
    path: Path | None
    """None when it came from stdin."""


def read_bytes(name: str) -> bytes:
    """Bytes of a file, or of stdin for `-`.

    Raises:
        UsageFault: `-` with a terminal on stdin. InputUnusable: missing, unreadable or larger than 512 MiB.
    """
    if name == "-":
        if sys.stdin.isatty():
            raise UsageFault(
                "'-' reads an artifact from stdin, but stdin is a terminal.", "", "Pipe one in, or name a file."
            )
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with open(name, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except (OSError, ValueError) as error:
            raise InputUnusable(f"{name}: cannot be read.", str(getattr(error, "strerror", None) or error)) from None
    if len(data) > MAX_BYTES:
        raise InputUnusable(f"{name}: larger than {MAX_BYTES >> 20} MiB.", "No stage writes artifacts of that size.")
    return data


def _render(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    more = error.error_count() - 1
    return f"{where or 'document'}: {first['msg']}" + (f" (and {more} more)" if more else "")


def _schema_of(data: bytes, name: str) -> tuple[str, int]:
    """(schema, minor) of the document. Parsed by json: pydantic would report every field of the wrong model."""
    try:
        document = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputUnusable(
            f"{name}: not UTF-8.", f"{error.reason} at byte {error.start}.", "Artifacts are UTF-8 JSON."
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputUnusable(f"{name}: not JSON.", str(error), "Was the file truncated? Run the stage again.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str):
        raise InputUnusable(f"{name}: not a SpecPilot artifact.", "It has no 'schema'.")
    minor = document.get("schema_minor", 0)
    return schema, minor if isinstance(minor, int) else 0


def load(name: str, *expected: str, allow_incomplete: bool = False) -> Loaded[Any]:
    """Read and validate an artifact.

    Args:
        name: a path, or `-` for stdin.
        expected: schema names that will do (`profile`, `pair-run`, …); none given accepts every known one.
        allow_incomplete: accept `complete: false` (only `show` and `--resume` do).
    Raises:
        InputUnusable: damaged, of another schema or major, or incomplete.
    """
    data = read_bytes(name)
    shown = "stdin" if name == "-" else name
    schema, minor = _schema_of(data, shown)
    names = {f"specpilot.{n}/1": n for n in (expected or registry.NAMES)}
    if schema not in names:
        wanted = " or ".join(sorted(names)) if expected else "a schema of this version"
        raise InputUnusable(f"{shown}: schema is '{schema}'.", f"Expected {wanted}.", "See `specpilot schema`.")
    cls = registry.model(names[schema])
    artifact = _validate(cls, data, shown, newer=minor > cast(int, cls.model_fields["schema_minor"].default))
    if not artifact.complete and not allow_incomplete:
        raise InputUnusable(
            f"{shown}: incomplete.", "The run that wrote it was interrupted.", "Finish it with --resume."
        )
    source = Source(name=Path(shown).name, sha256=sha256_bytes(data), artifact_schema=schema)
    return Loaded(artifact, source, None if name == "-" else Path(name))


def _validate(cls: type[A], data: bytes, shown: str, *, newer: bool) -> A:
    try:
        artifact = cls.model_validate_json(data, strict=True, extra="ignore" if newer else "forbid")
    except ValidationError as error:
        raise InputUnusable(f"{shown}: not a valid {cls.model_fields['schema_'].default}.", _render(error)) from None
    if newer:
        console.say(f"warning: {shown} was written by a newer minor version; fields unknown here were ignored.")
    return artifact


def dump(artifact: Envelope) -> bytes:
    """The artifact's bytes: every field, two-space indent, one trailing newline."""
    return (artifact.model_dump_json(indent=2, by_alias=True) + "\n").encode()


def write_atomic(path: Path, data: bytes) -> None:
    """Write through a temporary file in the same folder and `replace`.

    Raises:
        EnvironmentUnusable: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).chmod(0o644)
                Path(file.name).replace(path)
            except BaseException:
                with suppress(OSError):
                    Path(file.name).unlink()
                raise
    except OSError as error:
        raise EnvironmentUnusable(f"{path}: cannot be written.", error.strerror or str(error)) from None


class Writer:
    """Where an artifact goes. Made before the measuring starts, so that an unwritable path fails in second 0.

    `-` holds the artifact back until `finish` and then puts its bytes on stdout; a directory (existing, or ending in
    `/`) gets a unique name; no path means `runs/`.
    """

    def __init__(self, out: str | None, stage: str) -> None:
        self.to_stdout = out == "-"
        self.path = None if self.to_stdout else self._resolve(out or "runs/", stage)
        if self.path is not None and not os.access(_existing_parent(self.path), os.W_OK):
            raise EnvironmentUnusable(f"{self.path}: cannot be written.", "The folder is not writable.")

    @staticmethod
    def _resolve(out: str, stage: str) -> Path:
        path = Path(out)
        if not (out.endswith("/") or path.is_dir()):
            return path
        stamp = re.sub(r"[-:]|\+.*", "", utc_now().isoformat()) + "Z"
        for number in range(1000):
            candidate = path / f"{stamp}-{stage}{f'-{number}' if number else ''}.json"
            if not candidate.exists():
                return candidate
        raise EnvironmentUnusable(f"{out}: no free file name for {stage}.")

    def checkpoint(self, artifact: Envelope) -> None:
        """Rewrite the file with what is there so far (nothing on stdout)."""
        if self.path is not None:
            write_atomic(self.path, dump(artifact))

    def finish(self, artifact: Envelope) -> None:
        """Write the final bytes; print the path, or the bytes themselves for `-`."""
        if self.path is None:
            sys.stdout.buffer.write(dump(artifact))
            sys.stdout.buffer.flush()
            return
        self.checkpoint(artifact)
        console.emit(str(self.path))


def _existing_parent(path: Path) -> Path:
    parent = path.absolute().parent
    while not parent.exists():
        parent = parent.parent
    return parent
