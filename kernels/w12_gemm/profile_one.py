"""A few launches for a profiler: `ncu -k regex:w12_gemm python profile_one.py half,wide 32 gate_up,o`.

Arguments: variants, rows, shapes. Leave the clocks alone (`--clock-control none`).
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels._testing.inputs import activations, realistic_weight  # noqa: E402
from specpilot_kernels.w12_gemm import op  # noqa: E402
from specpilot_kernels.w12_gemm.bench import SHAPES  # noqa: E402
from specpilot_kernels.w12_gemm.prepare import prepare  # noqa: E402
from specpilot_kernels.w12_pack import op as w12  # noqa: E402

if __name__ == "__main__":
    names, rows, shapes = sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3].split(",")
    for shape in shapes:
        n, k = SHAPES[shape]
        packed = prepare(w12.pack(realistic_weight(n, k, "cuda", seed=0)))
        x = activations(rows, k, "cuda", seed=1)
        for name in names:
            op.matmul(x, packed, variant=op.find(name, rows))
    torch.cuda.synchronize()
