"""Outputs of `_layer_norm_fwd_1pass_kernel` and of the kernel for few rows, both as they stand in the tree."""

import ast
import importlib.util
import sys
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch

FLA = Path.cwd() / "sglang/kernels/ops/attention/fla"


def module(path: Path) -> Any:
    """A file by its path: importing the package would import the engine."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


def general_kernel() -> Any:
    """The general kernel's own text in a file of its own."""
    text = (FLA / "layernorm_gated.py").read_text()
    body = next(n for n in ast.parse(text).body if getattr(n, "name", "") == "_layer_norm_fwd_1pass_kernel")
    assert isinstance(body, ast.FunctionDef)
    lines = text.splitlines()[body.decorator_list[0].lineno - 1 : body.end_lineno]
    path = Path(mkdtemp()) / "general_kernel.py"
    path.write_text("\n".join(["import triton", "import triton.language as tl", "", *lines, ""]))
    return module(path)._layer_norm_fwd_1pass_kernel


def general(kernel: Any, x: Any, z: Any, weight: Any, gate: str, rows: int) -> torch.Tensor:
    """What `_layer_norm_fwd` launches for a gated RMS norm."""
    out, rstd = torch.empty_like(x), torch.empty(len(x))
    kernel[(-(-len(x) // rows), 1)](
        x, out, weight, None, z, None, rstd, x.stride(0), out.stride(0), z.stride(0), 0, 0, len(x), x.shape[1], 1e-6,
        BLOCK_N=x.shape[1], ROWS_PER_BLOCK=rows, HAS_BIAS=False, HAS_Z=True, Z_IS_3D=False, Z_HEADS=1,
        NORM_BEFORE_GATE=True, IS_RMS_NORM=True, ACTIVATION=gate, num_warps=1,
    )  # fmt: skip
    return out


def main() -> None:
    few_rows, kernel = module(FLA / "layernorm_gated_few_rows.py"), general_kernel()
    generator = torch.Generator().manual_seed(0)
    compared = differing = 0
    for count in (1, 7, 12):
        x = torch.randn(count, 128, generator=generator) * torch.exp2(8 * torch.randn(count, 1, generator=generator))
        z = (4 * torch.randn(count, 256, generator=generator))[:, :128]
        weight = 1 + torch.randn(128, generator=generator) / 4
        for gate in few_rows.GATES:
            for rows in (1, 2, 4):
                mine = few_rows.gated_rms_norm(x, z, weight, 1e-6, gate, rows, pdl=False)
                other = general(kernel, x, z, weight, gate, rows)
                differing += int((mine.view(torch.int32) != other.view(torch.int32)).sum())
                compared += mine.numel()
    print(compared, "outputs,", differing, "differ")


if __name__ == "__main__":
    main()
