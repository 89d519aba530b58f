"""`memory apply --clone`: entries on a clone of SGLang's repository, where the package stands below `python/`.

Deltas are wheel-relative, and so are their trees. The stock tree is made in the clone's object store from its own
blobs, entries are composed on that tree as on any stock, and what changed goes into the clone's tree by blob.
"""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.engine.sglang.clone import PREFIX, stock_blobs
from specpilot_cli.engine.sglang.manifest import Manifest, stock_manifest
from specpilot_cli.memory.apply import Plan, message, plan_on
from specpilot_cli.memory.compose import EntryRefused
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import commit_tree, head_commit, scratch, tree_of, worktree_root
from specpilot_cli.worktrees.patch import ABSENT, Change, changes
from specpilot_cli.worktrees.run import git, paths, text

_PLAIN = ("100644", "100755")


def plan_on_clone(
    room: Room, names: tuple[str, ...], clone: Path, *, negative: bool = False, manifest: Manifest | None = None
) -> Plan:
    """Resolve and compose `names` on the stock source of a clone, in the clone's object store only.

    Raises:
        EnvironmentUnusable: no clone at the release's tag, changed files below `python/sglang`, or files that are not
            stock's. What `apply.plan` raises for entries.
    """
    root = worktree_root(clone)
    blobs = stock_blobs(root, manifest or stock_manifest())
    listing = "".join(f"100644 {blob}\t{name}\0" for name, blob in blobs.items()).encode()
    with scratch(root) as env:
        git("update-index", "-z", "--index-info", cwd=root, stdin=listing, env=env)
        base = text("write-tree", cwd=root, env=env)
    return plan_on(room, names, root, base, negative=negative)


def tree_in_clone(made: Plan) -> str:
    """The clone's whole tree with the plan's changes below `python/`.

    Raises:
        EntryRefused: the clone has a file, which the wheel has not, at a path that an entry adds.
    """
    root, head = made.stock, tree_of(made.stock, head_commit(made.stock))
    there = _modes(root, head)
    lines = []
    for change in changes(root, made.composition.base, made.composition.tree):
        path = PREFIX + change.path
        if change.old_mode == ABSENT and path in there:
            raise EntryRefused(f"{path}: is in the clone already.", "The wheel does not have it, and an entry adds it.")
        lines.append(_line(change, path, there.get(path, "")))
    with scratch(root, head) as env:
        git("update-index", "-z", "--index-info", cwd=root, stdin="".join(lines).encode(), env=env)
        return text("write-tree", cwd=root, env=env)


def _modes(root: Path, tree: str) -> dict[str, str]:
    entries = paths("ls-tree", "-r", "-z", "--full-tree", tree, f"{PREFIX}sglang", cwd=root)
    return {name: meta.split(" ", 1)[0] for meta, name in (entry.split("\t", 1) for entry in entries)}


def _line(change: Change, path: str, mode: str) -> str:
    """For `update-index --index-info`. A file of the clone keeps its own mode, which may be executable."""
    if change.new_mode == ABSENT:
        return f"0 {'0' * len(change.old_blob)}\t{path}\0"
    kept = mode if change.old_mode == change.new_mode and mode in _PLAIN else change.new_mode
    return f"{kept} {change.new_blob}\t{path}\0"


def materialise_in_clone(made: Plan, tree: str, target: Path) -> None:
    """Put that tree into a new worktree of the clone at `target`, committed on its HEAD with a fixed author and date.

    Raises:
        EnvironmentUnusable: `target` is taken, or the clone has submodules.
    """
    commit = commit_tree(made.stock, tree, message(made), [head_commit(made.stock)])
    checkout.add(made.stock, commit, target)
