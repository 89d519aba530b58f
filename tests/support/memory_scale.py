"""A large memory room on a large stock, made by git alone: what the code under test must give is known beforehand.

Every entry changes a line of its own in a hub file, a line of a file of its own subsystem, and adds a module; an entry
with requirements also changes the module of its first one, so that its delta applies only after it. Whatever set of
entries is applied, the content is the stock's with the changes of all: so the expected trees are made.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from support.mini_repo import raw_git

from specpilot_cli.memory import index
from specpilot_cli.memory.room import Room

GAP = 8
"""Lines between two changes of one file: more than the context of a patch on both sides."""

Content = dict[str, list[str]]


@dataclass
class Plan:
    """Which entry requires which: `closures` holds everything below an entry, itself left out."""

    requires: dict[str, list[str]]
    closures: dict[str, set[str]] = field(default_factory=dict)


def draw_plan(entries: int, max_requires: int, seed: int) -> Plan:
    """A random requirement graph whose closures have up to `max_requires` entries, with at least one that has all."""
    rng = random.Random(seed)
    plan = Plan({})
    names = [f"e{n:03}-{rng.choice('qxkd')}" for n in range(entries)]
    for at, name in enumerate(names):
        wanted, below = [], set[str]()
        for other in rng.sample(names[:at], min(at, rng.randint(0, 4))):
            joined = below | {other} | plan.closures[other]
            if len(joined) <= max_requires:
                wanted, below = [*wanted, other], joined
        if at == entries - 1:  # the largest closure that is allowed
            wanted = below_list = names[:max_requires]
            below = set(below_list).union(*(plan.closures[n] for n in below_list))
        plan.requires[name], plan.closures[name] = sorted(wanted), below
    return plan


def stock_content(files: int, entries: int) -> Content:
    """`files` text files: a hub with room for a change of every entry, and modules."""
    lines = [f"value_{n} = {n}" for n in range(entries * GAP)]
    content: Content = {"engine/hub.py": lines}
    for n in range(files - 1):
        content[f"engine/part{n % 40:02}/module_{n:04}.py"] = [f"x_{n}_{i} = {i}" for i in range(40)]
    return content


def changed(stock: Content, plan: Plan, chosen: Collection[str]) -> Content:
    """The files that `chosen` (closed under requirements) change, with their content."""
    names = list(plan.requires)
    found: Content = {}
    for at, name in enumerate(names):
        if name not in chosen:
            continue
        hub = found.setdefault("engine/hub.py", list(stock["engine/hub.py"]))
        hub[at * GAP + GAP // 2] = f"value_{name.replace('-', '_')} = True"
        part = f"engine/part{at % 40:02}/module_{at:04}.py"
        found.setdefault(part, list(stock[part]))[20] = f"switch = {at}"
        found[f"engine/added/{name}.py"] = [f"line_{i} = {at}" for i in range(8 * GAP * 2)]
    for at, name in enumerate(names):
        if name in chosen and plan.requires[name]:
            first = plan.requires[name][0]
            slots = [n for n in names if plan.requires[n][:1] == [first]]
            module = found[f"engine/added/{first}.py"]
            place = slots.index(name) * GAP + GAP // 2
            if place < len(module):
                module[place] = f"used_by = {at}"
    return found


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _index(repository: Path, index_file: Path, *args: str, stdin: bytes = b"") -> str:
    env = {**os.environ, "GIT_INDEX_FILE": str(index_file)}
    done = subprocess.run(["git", *args], cwd=repository, input=stdin, env=env, capture_output=True, check=True)
    return done.stdout.decode().strip()


class Trees:
    """Expected trees, by plain plumbing: one blob a file, one index."""

    def __init__(self, repository: Path, stock: Content, plan: Plan) -> None:
        self.repository, self.stock, self.plan = repository, stock, plan
        self.base = raw_git(repository, "rev-parse", "HEAD^{tree}")
        self._blobs: dict[bytes, str] = {}

    def _blob(self, data: bytes) -> str:
        if data not in self._blobs:
            done = subprocess.run(
                ["git", "hash-object", "-w", "--stdin"],
                cwd=self.repository,
                input=data,
                capture_output=True,
                check=True,
            )
            self._blobs[data] = done.stdout.decode().strip()
        return self._blobs[data]

    def tree(self, chosen: Collection[str]) -> str:
        """Tree of the stock with `chosen` in it."""
        file = self.repository / ".git" / "scale-index"
        files = changed(self.stock, self.plan, chosen)
        lines = [f"100644 {self._blob(_joined(content))}\t{path}\n" for path, content in files.items()]
        _index(self.repository, file, "read-tree", self.base)
        _index(self.repository, file, "update-index", "--add", "--index-info", stdin="".join(lines).encode())
        return _index(self.repository, file, "write-tree")


TOML = """schema = "specpilot.entry/1"
id = "{id}"
title = "Synthetic entry {id}"
kind = "engine"
status = "unmeasured"
requires = [{requires}]
[base]
engine = "toy"
tree = "{base}"
[reproduces]
tree = "{tree}"
[delta]
sha256 = "{sha}"
paths = [{paths}]
"""


@dataclass(frozen=True)
class Big:
    """A stock, a room, and what is known about them."""

    stock: Path
    room: Room
    plan: Plan
    trees: Trees

    @property
    def largest(self) -> str:
        """The entry with the most requirements below it."""
        return max(self.plan.closures, key=lambda name: (len(self.plan.closures[name]), name))


def _quoted(words: list[str]) -> str:
    return ", ".join(f'"{word}"' for word in words)


def _write_entry(room: Room, trees: Trees, name: str) -> None:
    below = trees.plan.closures[name]
    before, after = trees.tree(below), trees.tree(below | {name})
    shape = ("-r", "-p", "--binary", "--full-index", "--no-renames")
    delta = subprocess.run(
        ["git", "diff-tree", *shape, before, after], cwd=trees.repository, capture_output=True, check=True
    ).stdout
    paths = raw_git(trees.repository, "diff-tree", "-r", "--name-only", before, after).split("\n")
    folder = room.root / "toy" / name
    folder.mkdir(parents=True)
    (folder / "delta.patch").write_bytes(delta)
    (folder / "LIMITS.md").write_text(f"# Limits of {name}\n\nSynthetic.\n")
    requires = _quoted(trees.plan.requires[name])
    sha = sha256(delta).hexdigest()
    toml = TOML.format(id=name, requires=requires, base=trees.base, tree=after, sha=sha, paths=_quoted(paths))
    (folder / "entry.toml").write_text(toml)


def big(root: Path, *, files: int, entries: int, max_requires: int = 12, seed: int = 8) -> Big:
    """Make a stock of `files` files and a room of `entries` entries below `root`."""
    stock, content = root / "stock", stock_content(files, entries)
    stock.mkdir(parents=True)
    raw_git(stock, "init", "--quiet", "--initial-branch=stock")
    for path, lines in content.items():
        (stock / path).parent.mkdir(parents=True, exist_ok=True)
        (stock / path).write_bytes(_joined(lines))
    raw_git(stock, "add", "--all")
    raw_git(stock, "commit", "--quiet", "-m", "Stock")
    plan = draw_plan(entries, max_requires, seed)
    trees, room = Trees(stock, content, plan), Room(root / "room")
    for name in plan.requires:
        _write_entry(room, trees, name)
    index.write(room)
    return Big(stock, room, plan, trees)
