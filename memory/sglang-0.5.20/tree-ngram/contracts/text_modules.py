"""The modules of the entry's tree that hold requests' texts, without SGLang's own imports."""

from __future__ import annotations

import importlib
import sys
import types
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "sglang.srt", "sglang.srt.speculative")
NAMES = {"text": "request_text", "sampler": "sampler", "op": "selection.op", "arrays": "arrays"}


def text_modules(worktree: Path) -> Any:
    """Modules of `speculative/draft_tree` that need torch, numpy and triton alone."""
    for name in PACKAGES:
        module = types.ModuleType(name)
        module.__path__ = [str(worktree / name.replace(".", "/"))]
        sys.modules[name] = module
    root = "sglang.srt.speculative.draft_tree"
    return types.SimpleNamespace(**{short: importlib.import_module(f"{root}.{name}") for short, name in NAMES.items()})
