"""A stand-in for the package `deep_gemm`, for a GPU host that lacks it or cannot load it.

    python -m specpilot_cli.engine.sglang.deep_gemm_standin FOLDER    # prints what to set, as NAME=VALUE lines

SGLang 0.5.20 requires sgl-deep-gemm. On CUDA its EAGLE worker imports the DSA backend whatever the model is, to name a
class in an `isinstance` (`srt/speculative/eagle_worker_v2.py:528`), and that module imports `deep_gemm` unguarded
(`srt/layers/attention/dsa_backend.py:98`). A dense BF16 model calls nothing of it. Every other import of it that runs
when a module loads is in a `try` or behind `ENABLE_JIT_DEEPGEMM`, which `SGLANG_ENABLE_JIT_DEEPGEMM=0` keeps false, as
without the package. So the stand-in imports under that setting alone, has no names, and says so when asked for one.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SWITCH = "SGLANG_ENABLE_JIT_DEEPGEMM"
SOURCE = f'''"""No DeepGEMM: a stand-in that SGLang can import, by specpilot_cli/engine/sglang/deep_gemm_standin.py."""

import os

if os.environ.get("{SWITCH}", "").lower() not in ("0", "false", "n", "no"):
    raise ImportError("this deep_gemm is a stand-in, for {SWITCH}=0 only; install sgl-deep-gemm==0.2.0")

__version__ = "stand-in"


def __getattr__(name):
    raise AttributeError(f"deep_gemm.{{name}}: this deep_gemm is a stand-in; install sgl-deep-gemm==0.2.0")
'''


def write_standin(folder: Path) -> Path:
    """Write `deep_gemm.py` into `folder`, which is made. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "deep_gemm.py").write_text(SOURCE)
    return folder


def environment(folder: Path) -> dict[str, str]:
    """What a process has to have set for SGLang to import `deep_gemm`: nothing where a new process of this Python can.

    Else the stand-in is written into `folder`, and PYTHONPATH begins with it. Real builds are tried rather than looked
    for, since one for another torch fails with an error that SGLang does not catch.
    """
    if importlib.util.find_spec("deep_gemm") and _imports():
        return {}
    paths = [str(write_standin(folder).resolve()), os.environ.get("PYTHONPATH", "")]
    return {SWITCH: "0", "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def _imports() -> bool:
    done = subprocess.run([sys.executable, "-c", "import deep_gemm"], capture_output=True, check=False)
    return done.returncode == 0


if __name__ == "__main__":
    for pair in environment(Path(sys.argv[1])).items():
        print("=".join(pair))
