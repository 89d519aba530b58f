"""The tree's own w12 modules importable without the engine around them: packages without their `__init__.py`."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

TREE = Path.cwd()


def room(name: str) -> None:
    """A package of the tree; its `__init__.py` would import the whole engine."""
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(TREE.joinpath(*name.split(".")))]
    sys.modules[name] = module_from_spec(spec)


PARTS = ("sglang", "srt", "layers", "quantization", "w12")
for end in range(1, len(PARTS) + 1):
    room(".".join(PARTS[:end]))
