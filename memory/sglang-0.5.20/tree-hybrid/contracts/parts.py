"""The glue of trees and recurrent layers out of the tree that the entry gives, without SGLang's own imports."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import torch

TREE = Path.cwd()
PACKAGES = (
    "sglang.srt.speculative",
    "sglang.srt.layers.attention.linear.gdn_commit.gdn_tree",
    "sglang.srt.configs",
    "sglang.srt.managers",
)


def parts() -> Any:
    """`recurrent`, `accept` and `reference` (the recurrence as its definition says); `switch` of the kept rows."""
    for name in PACKAGES:
        words = name.split(".")
        for end in range(1, len(words) + 1):
            module = types.ModuleType(".".join(words[:end]))
            module.__path__ = [str(TREE.joinpath(*words[:end]))]
            sys.modules.setdefault(module.__name__, module)
    architectures = types.ModuleType("sglang.srt.configs.hybrid_arch")
    architectures.hybrid_gdn_config = lambda config: config.gdn  # type: ignore[attr-defined]
    architectures.mambaish_config = lambda config: config.gdn or config.mamba  # type: ignore[attr-defined]
    batches = types.ModuleType("sglang.srt.managers.schedule_batch")
    batches.ScheduleBatch = object  # type: ignore[attr-defined]
    for module in (architectures, batches, _stocks()):
        sys.modules[module.__name__] = module
    tree, linear = "sglang.srt.speculative.draft_tree", "sglang.srt.layers.attention.linear.gdn_commit"
    return types.SimpleNamespace(
        recurrent=importlib.import_module(f"{tree}.recurrent"),
        accept=importlib.import_module(f"{tree}.accept"),
        reference=importlib.import_module(f"{linear}.gdn_tree.reference"),
        switch=importlib.import_module(f"{linear}.switch"),
    )


def _stocks() -> types.ModuleType:
    """Stock's own count of steps, alone out of `spec_utils.py`; prefixes are kept at every multiple of four."""
    name = "_verify_commit_step_indices"
    source = (TREE / "sglang/srt/speculative/spec_utils.py").read_text()
    found = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef) and node.name == name]
    assert len(found) == 1
    found[0].args.kwonlyargs[0].annotation = None
    module = types.ModuleType("sglang.srt.speculative.spec_utils")
    module.__dict__.update(torch=torch, mamba_track_grid=lambda page: 4)
    code = "from __future__ import annotations\n" + ast.unparse(found[0])
    exec(compile(code, "spec_utils.py", "exec"), module.__dict__)
    return module
