"""SGLang 0.5.20's own kernels out of its source, without importing the engine: for comparing bits and times."""

import ast
import importlib.util
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import Any

FLA = "sglang/kernels/ops/attention/fla/"
NORM = FLA + "layernorm_gated.py"
RECURRENCE = FLA + "fused_sigmoid_gating_recurrent.py"
PDL_IMPORT = "from sglang.kernels.jit.utils import is_arch_support_pdl\n"
TILE = "min(triton.next_power_of_2(V), 32)"


def installed() -> Path:
    """The folder that holds the installed package `sglang`. Raises `FileNotFoundError` where there is none."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("SGLang is not installed, and no source of it was given.")
    return Path(next(iter(spec.submodule_search_locations))).parent


def text_of(source: Path, name: str) -> str:
    """A file of a wheel, or of a folder that holds `sglang/`."""
    if source.is_file():
        with zipfile.ZipFile(source) as wheel:
            return wheel.read(name).decode()
    return (source / name).read_text(encoding="utf-8")


def _module(name: str, text: str) -> ModuleType:
    """Triton reads a kernel's source from its file, so there has to be one."""
    path = Path(mkdtemp(prefix="stock-kernels-")) / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def norm_kernel(source: Path) -> Any:
    """`_layer_norm_fwd_1pass_kernel`, the text of the function as it stands there."""
    text = text_of(source, NORM)
    body = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "_layer_norm_fwd_1pass_kernel")
    assert isinstance(body, ast.FunctionDef)
    lines = text.splitlines()[body.decorator_list[0].lineno - 1 : body.end_lineno]
    module = _module("stock_norm", "\n".join(["import triton", "import triton.language as tl", "", *lines, ""]))
    return module._layer_norm_fwd_1pass_kernel


def norm(source: Path, x: Any, z: Any, weight: Any, eps: float, activation: str, rows: int, pdl: bool) -> Any:
    """What `_layer_norm_fwd` launches for the gated RMS norm of a matrix, with its tile of `rows` rows and one warp."""
    import torch

    out = torch.empty_like(x)
    rstd = torch.empty(len(x), dtype=torch.float32, device=x.device)
    width = x.shape[1]
    norm_kernel(source)[(-(-len(x) // rows), 1)](
        x, out, weight, None, z, None, rstd, x.stride(0), out.stride(0), z.stride(0), 0, 0, len(x), width, eps,
        BLOCK_N=width, ROWS_PER_BLOCK=rows, HAS_BIAS=False, HAS_Z=True, Z_IS_3D=False, Z_HEADS=1, NORM_BEFORE_GATE=True,
        IS_RMS_NORM=True, ACTIVATION=activation, num_warps=1, **({"USE_GDC": True, "launch_pdl": True} if pdl else {}),
    )  # fmt: skip
    return out


@cache
def recurrence(source: Path, columns: int = 32) -> Callable[..., Any]:
    """`fused_sigmoid_gating_delta_rule_update` with tiles of `columns` columns of the state; stock's are 32."""
    text = text_of(source, RECURRENCE)
    assert text.count(PDL_IMPORT) == 1 and text.count(TILE) == 1, "not the recurrence of SGLang 0.5.20"
    text = text.replace(
        PDL_IMPORT, "def is_arch_support_pdl():\n    return torch.cuda.get_device_capability()[0] >= 9\n"
    )
    text = text.replace(TILE, TILE.replace("32", str(columns)))
    found: Callable[..., Any] = _module(f"stock_recurrence_{columns}", text).fused_sigmoid_gating_delta_rule_update
    return found
