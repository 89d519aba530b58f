"""`specpilot.entry/1`: one folder of the memory room, `<engine>/<id>/`, and its `entry.toml`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from specpilot_cli.artifacts.base import GitTree, Record, Sha256, Source
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_TOML_BYTES = 256 * 1024
MAX_REQUIRES = 12

ID_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?$"
ENGINE_PATTERN = r"^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$"

EntryId = Annotated[str, Field(pattern=ID_PATTERN)]
EngineName = Annotated[str, Field(pattern=ENGINE_PATTERN)]
ConfigurationKey = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.]{0,127}$")]
Kind = Literal["format", "tree", "verify", "batching", "kernel", "engine"]
Status = Literal["unmeasured", "validated", "retuned", "retired", "negative"]
Factor = Literal["acceptance", "kernels", "outside"]
Line = Annotated[str, Field(min_length=1, max_length=400)]


class Base(Record):
    """What the entry was made for."""

    engine: EngineName
    tree: GitTree
    """Tree id of the stock engine."""


class Reproduces(Record):
    """What applying it must give."""

    tree: GitTree
    """Tree id of base + requires + delta."""


class Delta(Record):
    """The code change, in `delta.patch`."""

    sha256: Sha256
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    """Every path that the delta adds, changes or removes, sorted; it touches no other."""
    vary: tuple[ConfigurationKey, ...] = ()
    """Server configuration keys that the delta adds or changes: two arms may differ in these."""


class Range(Record):
    """A closed range of a quantity."""

    min: Annotated[int, Field(ge=0)]
    max: int

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        return self


class Applies(Record):
    """Validity region: where the entry was found to hold. What is not given is not established."""

    drafters: tuple[Line, ...] = ()
    """Drafter ids of deployments; `*` stands for any characters, here and in the next two."""
    targets: tuple[Line, ...] = ()
    devices: tuple[Line, ...] = ()
    """GPU architectures such as `sm90`, ids such as `h200-sxm`, or `cpu`."""
    requests: Range | None = None
    """Concurrent requests."""
    context_tokens: Range | None = None


class Attacks(Record):
    """What the entry is for, in the words of a ceiling."""

    factor: Factor
    """Which of the ceiling's three factors it takes from."""
    classes: tuple[Line, ...] = ()
    """For `kernels`: kernel classes of a profile (`*` stands for any characters). None given: all of them."""


class Tried(Record):
    """A figure of a trial."""

    quantity: Line
    """Such as `gain`, `accept length`, `decode time`."""
    value: float
    unit: Annotated[str, Field(max_length=40)]
    """Empty for a ratio."""
    deployment: Line
    """Deployment id, or model, drafter, device and shape in words."""
    date: str | None = None
    source: Line
    """Artifact in `evidence/`, or where the figure is from."""


class DeadEnd(Record):
    """What was tried on the way and dropped, so that nobody tries it again."""

    tried: Line
    why: Line
    """Why it was dropped, with its figures."""


class Retraction(Record):
    """Why a retired entry is no longer applied."""

    date: str
    why: Line
    instead: EntryId | None = None


class Origin(Record):
    """Where it came from."""

    date: str | None = None
    source: str | None = None
    """Paper section, upstream change, or round and direction."""
    author: str | None = None


class Entry(Record):
    """`entry.toml`."""

    schema_: Literal["specpilot.entry/1"] = Field(alias="schema")
    id: EntryId
    title: Annotated[str, Field(min_length=1, max_length=120)]
    kind: Kind
    status: Status
    requires: Annotated[tuple[EntryId, ...], Field(max_length=MAX_REQUIRES)] = ()
    """Ids of entries of the same engine whose deltas this one builds on."""
    conflicts: tuple[EntryId, ...] = ()
    base: Base
    reproduces: Reproduces
    delta: Delta
    applies: Applies = Applies()
    attacks: Attacks | None = None
    origin: Origin = Origin()
    unverified: tuple[Line, ...] = ()
    """Areas where nobody has looked."""
    dead_ends: tuple[DeadEnd, ...] = ()
    tried: tuple[Tried, ...] = ()
    """Figures of trials; a negative entry needs them."""
    retraction: Retraction | None = None

    @model_validator(mode="after")
    def _status_is_explained(self) -> Entry:
        if self.status == "negative" and not self.tried:
            raise ValueError("tried: status 'negative' needs the figures, as [[tried]]")
        if self.retraction is not None and self.status != "retired":
            raise ValueError(f"retraction: status is '{self.status}', a retraction needs 'retired'")
        return self


@dataclass(frozen=True)
class EntryFolder:
    """An entry and the folder and bytes it was read from."""

    entry: Entry
    folder: Path
    toml: bytes

    @property
    def name(self) -> str:
        """`<engine>/<id>`, unique in a room."""
        return f"{self.entry.base.engine}/{self.entry.id}"

    @property
    def delta_path(self) -> Path:
        """The delta's file."""
        return self.folder / "delta.patch"

    def sources(self) -> tuple[Source, ...]:
        """Digests of the files that applying the entry reads."""
        return (
            Source(name=f"{self.name}/entry.toml", sha256=sha256_bytes(self.toml)),
            Source(name=f"{self.name}/delta.patch", sha256=self.entry.delta.sha256),
        )


def load_entry(folder: Path) -> EntryFolder:
    """Read and validate `folder/entry.toml`.

    Raises:
        InputUnusable: missing, damaged, of another schema, or in a folder that is not `<engine>/<id>`.
    """
    path = folder / "entry.toml"
    data = read_file(path, MAX_TOML_BYTES)
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputUnusable(f"{path}: not TOML.", str(error)) from None
    try:
        # through JSON, since strict validation would refuse TOML's arrays for tuples; dates become their ISO text
        entry = Entry.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise InputUnusable(f"{path}: not a valid specpilot.entry/1.", first_fault(error)) from None
    if (folder.parent.name, folder.name) != (entry.base.engine, entry.id):
        raise InputUnusable(f"{path}: says {entry.base.engine}/{entry.id}.", "The folder must be <engine>/<id>.")
    return EntryFolder(entry, folder, data)


def first_fault(error: ValidationError) -> str:
    """Key and complaint of the first thing that is wrong."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return ": ".join(filter(None, (where, first["msg"].removeprefix("Value error, "))))


def read_file(path: Path, limit: int) -> bytes:
    """Bytes of a plain file of an entry.

    Raises:
        InputUnusable: missing, unreadable, a symbolic link, or larger than `limit` bytes.
    """
    if path.is_symlink():
        raise InputUnusable(f"{path}: is a symbolic link.", "An entry's files are its own.")
    try:
        with open(path, "rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    if len(data) > limit:
        raise InputUnusable(f"{path}: larger than {limit} bytes.", "Entries are small.")
    return data
