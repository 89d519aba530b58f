"""Modules of the tree without the engine around them."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any

TREE = Path.cwd()
PACKAGES = (
    "sglang.kernels.ops.attention.fla",
    "sglang.kernels.ops.mamba",
    "sglang.kernels.ops.memory",
    "sglang.kernels.jit",
    "sglang.srt.layers.attention.linear.gdn_commit",
)


def rooms() -> None:
    """The packages without their `__init__.py`, which would import the whole engine."""
    for name in PACKAGES:
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            whole = ".".join(parts[:end])
            if whole not in sys.modules:
                spec = ModuleSpec(whole, None, is_package=True)
                spec.submodule_search_locations = [str(TREE.joinpath(*parts[:end]))]
                sys.modules[whole] = module_from_spec(spec)
    arch: Any = ModuleType("sglang.kernels.jit.utils")
    arch.is_arch_support_pdl = lambda: False
    sys.modules.setdefault(arch.__name__, arch)


def part(name: str) -> Any:
    """A module of `gdn_commit`."""
    rooms()
    return import_module(f"sglang.srt.layers.attention.linear.gdn_commit.{name}")
