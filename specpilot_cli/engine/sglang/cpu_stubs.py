"""Stand-ins for two packages that SGLang 0.5.20 imports on a CPU and never calls there.

    python -m specpilot_cli.engine.sglang.cpu_stubs FOLDER      # then: export SPECPILOT_SGLANG_PATH=FOLDER

`vllm._custom_ops` is imported for its rotary embedding off CUDA, `torchvision` for names that only image models use
(`srt/utils/common.py`, `srt/configs/deepseek_ocr.py`).
"""

from __future__ import annotations

import sys
from pathlib import Path

_NAMES = """
class _Name(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name

def names_of(module):
    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(name, (), {"__module__": module})
    return __getattr__
"""
_MODULES = ("transforms/__init__", "transforms/functional", "transforms/v2/__init__", "transforms/v2/functional")


def write_stubs(folder: Path) -> Path:
    """Write both below `folder`, which is made; files that are there are written again. Returns `folder`."""
    (folder / "vllm").mkdir(parents=True, exist_ok=True)
    (folder / "vllm/__init__.py").write_text("")
    (folder / "vllm/_custom_ops.py").write_text("rotary_embedding = None\n")
    (folder / "torchvision/transforms/v2").mkdir(parents=True, exist_ok=True)
    (folder / "torchvision/__init__.py").write_text('__version__ = "0.0.0"\n' + _NAMES)
    for name in (*_MODULES, "io", "ops"):
        (folder / f"torchvision/{name}.py").write_text(
            "from torchvision import names_of\n__getattr__ = names_of(__name__)\n"
        )
    return folder


if __name__ == "__main__":
    print(write_stubs(Path(sys.argv[1])))
