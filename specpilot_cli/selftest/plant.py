"""A worktree of the stock engine with a system planted in it."""

from __future__ import annotations

import json
from pathlib import Path

from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.selftest.system import Parameters, System
from specpilot_cli.worktrees import checkout, patch
from specpilot_cli.worktrees.git import base_commit, commit_tree, tree_of
from specpilot_cli.worktrees.run import git


def plant(system: System, stock: Path, folder: Path) -> Path:
    """Make `folder/worktree` from the stock repository and edit it.

    Raises:
        ExternalFailed: an edit or the patch does not fit the stock source.
    """
    worktree, base = folder / "worktree", base_commit(stock)
    if system.delta is not None:
        patched = patch.apply(stock, tree_of(stock, base), system.delta(), name=system.name).tree
        checkout.add(stock, commit_tree(stock, patched, f"Selftest: {system.name}\n", [base]), worktree)
        return worktree
    checkout.add(stock, base, worktree)
    for edit in system.edits:
        edit.apply(worktree)
    for name, text in system.sources().items():
        (worktree / name).write_text(text, encoding="utf-8")
    git("add", "--all", ".", cwd=worktree)
    return worktree


def hand_over(folder: Path, parameters: Parameters) -> None:
    """Parameters of the next repeat, where `planted.drawn` reads them: beside the worktree, not in it."""
    write_atomic(folder / "parameters.json", json.dumps(parameters).encode())
