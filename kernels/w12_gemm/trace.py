"""Where a launch spends its time: percentiles over blocks of a traced variant (built with -DW12_ABLATIONS).

python trace.py wide4_trace 32 gate_up,o [raw.json]
"""

import ctypes
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from mount import mount

mount()
from specpilot_kernels._testing.inputs import activations, realistic_weight  # noqa: E402
from specpilot_kernels.w12_gemm import op  # noqa: E402
from specpilot_kernels.w12_gemm.bench import SHAPES  # noqa: E402
from specpilot_kernels.w12_gemm.prepare import Prepared, prepare  # noqa: E402
from specpilot_kernels.w12_pack import op as w12  # noqa: E402

POINTS = ("start", "barriers ready", "first slot full", "last step done", "sums handed over", "all sums there", "end")
LAUNCHES = (op.Launch(split=0), op.Launch(), op.Launch(ahead=2))


def stamps(variant: op.Variant, x: torch.Tensor, weights: list[Prepared], launch: op.Launch) -> torch.Tensor:
    """`[blocks, 8]` int64 of one launch after others over different weights: nanoseconds at POINTS, then the SM."""
    for weight in weights:
        op.matmul(x, weight, variant=variant, launch=launch)
    torch.cuda.synchronize()
    buffer = (ctypes.c_uint64 * (1024 * 8))()
    op._shared_object().w12_gemm_trace(buffer)
    found = torch.tensor(list(buffer), dtype=torch.int64).view(1024, 8)
    return found[found[:, 0] >= found[:, 0].max() - 1_000_000]  # this launch, not a larger earlier grid


def report(name: str, rows: int, shape: str) -> list[dict[str, object]]:
    """Print microseconds after the first block's start (least, median, most over blocks); return raw stamps."""
    n, k = SHAPES[shape]
    weights = [prepare(w12.pack(realistic_weight(n, k, "cuda", seed))) for seed in range(3)]
    x = activations(rows, k, "cuda", seed=1)
    variant = op.find(name, rows)
    assert variant is not None
    raw: list[dict[str, object]] = []
    for launch in LAUNCHES:
        for _ in range(4):
            found = stamps(variant, x, weights, launch)
            raw.append(
                {"variant": name, "rows": rows, "shape": shape, "launch": vars(launch), "stamps": found.tolist()}
            )
        us = (found - found[:, 0].min()).double() / 1000
        print(f"{name} {rows} rows {shape} {launch}: {len(us)} blocks")
        for point, title in enumerate(POINTS):
            column = us[:, point]
            column = column[column > 0] if point else column
            if len(column):
                low, mid, high = column.min(), column.median(), column.max()
                print(f"  {title:18s} {low:7.2f} {mid:7.2f} {high:7.2f}  ({len(column)})")
    return raw


if __name__ == "__main__":
    everything = []
    for shape in sys.argv[3].split(","):
        for name in sys.argv[1].split(","):
            everything += report(name, int(sys.argv[2]), shape)
    if len(sys.argv) > 4:
        Path(sys.argv[4]).write_text(json.dumps(everything))
