"""The draft tree's modules out of the tree that the entry gives, without SGLang's own imports."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "sglang.srt", "sglang.srt.speculative")
NAMES = ("arrays", "accept", "beam", "compaction", "lattice", "pair_scores", "regime", "rows", "sampler")


def tree_modules(worktree: Path) -> Any:
    """Modules of `speculative/draft_tree` that need torch and triton alone, and the plain selection, by name."""
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(worktree / name.replace(".", "/"))]
        sys.modules[name] = module
    root = "sglang.srt.speculative.draft_tree"
    found = {name: importlib.import_module(f"{root}.{name}") for name in NAMES}
    found["op"] = importlib.import_module(f"{root}.selection.op")
    found["reference"] = importlib.import_module(f"{root}.selection.reference")
    return types.SimpleNamespace(**found)
