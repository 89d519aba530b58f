"""The lattice folder: `lattice.json` (header and index) and its shards. Appending is crash-safe, reading streams."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.base import Source, envelope_fields
from specpilot_cli.artifacts.io import dump, load, write_atomic
from specpilot_cli.artifacts.replay_lattice import LatticeArtifact, LatticeBody, Shard
from specpilot_cli.core import console
from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.replay import shards
from specpilot_cli.replay.steps import Steps

INDEX = "lattice.json"
SHARD = "shard-{:05d}.safetensors"


class LatticeWriter:
    """Appends shards to a folder. A shard counts once the index names it, so a kill loses at most the last shard."""

    def __init__(self, folder: Path, header: LatticeBody, *, inputs: tuple[Source, ...] = ()) -> None:
        """Start a recording, or go on with the one that is there.

        Raises:
            UsageFault: the folder holds a finished recording, or one with another header.
        """
        self.folder, self._body = folder, header
        self._fields = envelope_fields(inputs=inputs, complete=False)
        if (folder / INDEX).exists():
            self._resume(header)
        self._write(complete=False)

    @staticmethod
    def recorded_in(folder: Path) -> frozenset[str]:
        """Ids of the requests that an earlier recording in `folder` holds; empty where there is none."""
        if not (folder / INDEX).exists():
            return frozenset()
        return frozenset(name for shard in LatticeReader(str(folder)).body.shards for name in shard.requests)

    def _resume(self, header: LatticeBody) -> None:
        found: LatticeArtifact = load(str(self.folder / INDEX), "lattice", allow_incomplete=True).artifact
        same = found.body.model_copy(update={"shards": ()}) == header.model_copy(update={"shards": ()})
        if found.complete or not same:
            why = "It is complete." if found.complete else "It was started with other settings."
            raise UsageFault(f"{self.folder}: holds another recording.", why, "Name a folder that does not exist.")
        self._body = found.body
        self.caveat(*found.caveats)

    @property
    def recorded(self) -> frozenset[str]:
        """Ids of the requests that are in complete shards."""
        return frozenset(name for shard in self._body.shards for name in shard.requests)

    def append(self, steps: Steps) -> None:
        """Write the steps of whole requests as one more shard, then the index."""
        name = SHARD.format(len(self._body.shards))
        data = shards.encode(steps)
        write_atomic(self.folder / name, data)
        shard = Shard(
            file=name,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            steps=len(steps),
            requests=tuple(text.id for text in steps.texts),
        )
        self._body = self._body.model_copy(update={"shards": (*self._body.shards, shard)})
        self._write(complete=False)

    def caveat(self, *lines: str) -> None:
        """Say doubts about what is recorded; each once."""
        self._fields["caveats"] = tuple(dict.fromkeys((*self._fields["caveats"], *lines)))

    def finish(self) -> Path:
        """Mark the recording complete; the index's path."""
        self._write(complete=True)
        return self.folder / INDEX

    def _write(self, *, complete: bool) -> None:
        fields: dict[str, Any] = {**self._fields, "complete": complete}
        write_atomic(self.folder / INDEX, dump(LatticeArtifact(**fields, body=self._body)))


class LatticeReader:
    """Reads a recording shard by shard."""

    def __init__(self, name: str) -> None:
        """Open a folder or its index.

        Raises:
            InputUnusable: no index, or a damaged one.
        """
        path = Path(name)
        loaded = load(str(path / INDEX if path.is_dir() else path), "lattice", allow_incomplete=True)
        self.artifact: LatticeArtifact = loaded.artifact
        self.source: Source = loaded.source
        self.body: LatticeBody = loaded.artifact.body
        self.folder = path if path.is_dir() else path.parent
        self._tell_strays()

    @property
    def caveats(self) -> tuple[str, ...]:
        """What a result over this recording must say."""
        cut = () if self.artifact.complete else (f"{self.folder.name}: the recording was interrupted",)
        return self.artifact.caveats + cut

    def _tell_strays(self) -> None:
        listed = {shard.file for shard in self.body.shards}
        for path in sorted(self.folder.glob("shard-*.safetensors")):
            if path.name not in listed:
                console.say(f"warning: {path.name} is not in the index (interrupted recording): not read.")

    def blocks(self, max_steps: int | None = None) -> Iterator[Steps]:
        """The steps of one shard after the other, until `max_steps` are there (whole shards).

        Raises:
            InputUnusable: a shard is missing, truncated, altered, or holds what cannot be.
        """
        first = 0
        for shard in self.body.shards:
            if max_steps is not None and first >= max_steps:
                return
            yield self._read(shard, first)
            first += shard.steps

    def _read(self, shard: Shard, first: int) -> Steps:
        path = self.folder / shard.file
        if not path.is_file():
            raise InputUnusable(f"{shard.file}: is missing.", f"{INDEX} lists it.", "Record again.")
        size = path.stat().st_size
        if size < shard.bytes:
            raise InputUnusable(f"{shard.file}: is truncated.", f"It has {size} bytes of {shard.bytes}.")
        body = self.body
        steps = shards.decode(
            path,
            positions=body.positions,
            width=body.candidates,
            conditioned=body.transitions != "none",
            vocab_size=body.vocab_size,
            ids=shard.requests,
            first_step=first,
        )
        if len(steps) != shard.steps:
            raise InputUnusable(f"{shard.file}: has {len(steps)} steps.", f"{INDEX} says {shard.steps}.")
        if sha256_file(path) != shard.sha256:
            raise InputUnusable(f"{shard.file}: was altered.", "Its sha256 is not the index's.", "Record again.")
        return steps
