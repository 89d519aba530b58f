"""Make the kernel rooms importable as ``specpilot_kernels.<room>``.

The folder `kernels/` must not be a package itself: with an `__init__.py` it would shadow the PyPI package `kernels`
that SGLang and Transformers import. So the rooms get their own namespace, mounted by path.
"""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

NAMESPACE = "specpilot_kernels"
ROOT = Path(__file__).resolve().parents[1]


def mount() -> None:
    """Register the namespace once; a second call, or one by another loader before us, changes nothing."""
    if NAMESPACE in sys.modules:
        return
    spec = ModuleSpec(NAMESPACE, None, is_package=True)
    spec.submodule_search_locations = [str(ROOT)]
    sys.modules[NAMESPACE] = module_from_spec(spec)
