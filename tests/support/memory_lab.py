"""A memory room for the small stock repository: entries are made as a user makes them, from worktrees."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from support.mini_repo import raw_git, write

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.memory import add as adding
from specpilot_cli.memory import index
from specpilot_cli.memory.compose import Composer
from specpilot_cli.memory.entry import EntryFolder
from specpilot_cli.memory.resolve import resolve
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import base_tree, commit_tree

Files = dict[str, bytes | None]


@dataclass(frozen=True)
class Lab:
    """A stock repository of engine `toy` and a room."""

    root: Path
    stock: Path
    room: Room

    def worktree(self, name: str, files: Files, on: tuple[str, ...] = ()) -> Path:
        """A worktree at `root/name` with entries `on` applied and `files` changed (None deletes)."""
        base = base_tree(self.stock)
        tree = Composer(self.stock).compose(base, resolve(on, self.room.loader("toy"))).tree
        target = self.root / name
        commit = commit_tree(self.stock, tree, "start\n", [raw_git(self.stock, "rev-parse", "HEAD")])
        checkout.add(self.stock, commit, target)
        for path, data in files.items():
            if data is None:
                (target / path).unlink()
        write(target, {path: data for path, data in files.items() if data is not None})
        return target

    def keep(
        self, entry: str, files: Files, requires: tuple[str, ...] = (), conflicts: tuple[str, ...] = ()
    ) -> EntryFolder:
        """An entry with that change."""
        worktree = self.worktree(f"work-{entry}", files, requires)
        draft = adding.Draft(
            entry, f"Entry {entry}", "engine", "toy", (f"{entry}_on".replace("-", "_"),), requires, conflicts
        )
        item = adding.add(self.room, worktree, draft)
        checkout.remove(self.stock, worktree)
        return item

    def rewrite(self, item: EntryFolder, pattern: str, replacement: str) -> None:
        """Change one line of `entry.toml`, and the index with it."""
        path = item.folder / "entry.toml"
        text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.MULTILINE)
        assert count == 1, pattern
        path.write_text(text)
        index.write(self.room)

    def forge(self, item: EntryFolder, delta: bytes, paths: str | None = None) -> None:
        """Another delta with a matching digest: what a careless or hostile editor would do."""
        item.delta_path.write_bytes(delta)
        self.rewrite(item, r'^sha256 = ".*"', f'sha256 = "{sha256_bytes(delta)}"')
        if paths is not None:
            self.rewrite(item, r"^paths = .*", f"paths = {paths}")
