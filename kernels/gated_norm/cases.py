"""Drawn inputs, and what every one of them has to fulfil.

TRITON_INTERPRET=1 python cases.py cpu [SOURCE]    # float32: Triton's interpreter rounds BF16 wrongly
python cases.py cuda [SOURCE]                      # BF16; SOURCE: a wheel of SGLang 0.5.20 or a folder with sglang/
"""

import itertools
import sys
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import torch
from specpilot_kernels.gated_norm import kernel, op, reference, stock

ROWS = (1, 8, 16, 64, 384, 1152, 9216)
VALUES = ("plain", "wide", "tiny", "zeros", "special")


@dataclass(frozen=True)
class Case:
    """One drawn call."""

    x: torch.Tensor
    z: torch.Tensor
    weight: torch.Tensor
    eps: float
    activation: str


def draw(rows: int, values: str, activation: str, seed: int, device: str, dtype: torch.dtype, width: int = 128) -> Case:
    """`values`: wide has rows of very different size; tiny is below eps; special has infinities and NaNs."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    x, z, weight = normal(rows, width), 3 * normal(rows, width), 1 + normal(width) / 4
    if values == "wide":
        x, z = x * torch.exp2(10 * normal(rows, 1)), z * 20
    elif values == "tiny":
        x = x * 1e-5
    elif values == "zeros":
        x[::2], z[:, ::3] = 0, 0
    elif values == "special":
        x[::3, 5], z[::5, 7], x[1::7, 0] = float("inf"), float("-inf"), float("nan")
    # the gate is a slice of a wider projection: its rows are further apart than they are wide
    z = torch.cat((z, z), 1).to(dtype)[:, :width]
    return Case(x.to(dtype), z, weight.to(dtype), 1e-6, activation)


def differing(case: Case, source: Path, tile: int) -> int:
    """Outputs whose bits are not those of stock's kernel with the same rows a program."""
    pdl = case.x.is_cuda and torch.cuda.get_device_capability()[0] >= 9
    given = (case.x, case.z, case.weight, case.eps, case.activation, tile, pdl)
    mine, other = kernel.gated_rms_norm(*given), stock.norm(source, *given)
    word = torch.int16 if case.x.element_size() == 2 else torch.int32
    return int((mine.view(word) != other.view(word)).sum())


def outside(case: Case) -> int:
    """Outputs further from float64 than a float32 evaluation and one rounding can be."""
    exact = reference.gated_rms_norm(case.x, case.z, case.weight, case.eps, case.activation)
    bound = reference.float32_bound(case.x, case.z, case.weight, case.eps, case.activation)
    if case.x.dtype == torch.bfloat16:
        # half a unit of the 8 bits, of a value that is already off; its denormals are 2^-133 apart
        bound = bound * (1 + 2.0**-8) + exact.abs() * 2.0**-8 + 2.0**-134
    found = op.norm(case.x, case.z, case.weight, case.eps, case.activation).double()
    finite = torch.isfinite(exact)
    wrong = finite & ((found - exact).abs() > bound)
    return int(wrong.sum()) + int((torch.isfinite(found) != finite).sum())


def main(device: str, source: Path | None) -> int:
    """All cases; the number of wrong outputs."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    wrong = different = compared = 0
    rows_of = (1, 5, 48) if device == "cpu" else ROWS
    for seed, (rows, values, gate) in enumerate(itertools.product(rows_of, VALUES, ("swish", "sigmoid"))):
        case = draw(rows, values, gate, seed, device, dtype)
        wrong += outside(case)
        if source is not None:
            for tile in (1, 2, 4):
                different += differing(case, source, tile)
                compared += case.x.numel()
    print(
        f"outside the bound: {wrong}; compared with stock bit for bit: {compared}, differing: {different}", flush=True
    )
    return wrong + different


if __name__ == "__main__":
    from specpilot_kernels._testing.words import parser_of

    parser = parser_of(__doc__, ("cpu", "cuda"))
    parser.add_argument("source", nargs="?", type=Path, help="stock's kernel, to be compared bit for bit")
    options = parser.parse_args()
    raise SystemExit(main(options.plan, options.source) != 0)
