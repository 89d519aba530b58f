"""Dummy weights whose outputs depend on every layer. The interpreter imports this where the folder is on its path.

The engine's own dummy weights are within a thousandth of zero and the same in every layer: the states of Gated DeltaNet
layers would hardly reach a logit. Here every parameter has a seed of its own and a size near that of a trained one.
"""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from zlib import crc32

TARGET = "sglang.srt.model_loader.weight_utils"
SPREAD = 0.02
FIXED = {"A_log": -2.0, "linear_attn.norm.weight": 1.0}  # slow decay; the gated norm multiplies by it


def initialize_dummy_weights(model, low=None, high=None, seed=0):
    """In place of the engine's; `low` and `high` are not read."""
    import torch

    for name, param in model.state_dict().items():
        if not torch.is_floating_point(param):
            continue
        value = next((value for end, value in FIXED.items() if name.endswith(end)), None)
        if value is not None:
            param.fill_(value)
            continue
        generator = torch.Generator(device=param.device).manual_seed(seed + crc32(name.encode()))
        param.uniform_(-SPREAD, SPREAD, generator=generator)


class _After(Loader):
    """Loads the module as always, then puts the function in."""

    def __init__(self, inner: Loader) -> None:
        self.inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        module.initialize_dummy_weights = initialize_dummy_weights


class _Finder(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != TARGET:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _After(spec.loader)
        return spec


sys.meta_path.insert(0, _Finder())
