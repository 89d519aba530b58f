"""The norm against float64 and, with SGLang's wheel (`SGLANG_TEST_WHEEL`), against stock's kernel bit for bit.

Triton's interpreter has to be chosen before Triton is imported, so those tests run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from specpilot_kernels.gated_norm import cases, compiled, kernel, op, reference, stock  # noqa: E402

CASES = Path(__file__).with_name("cases.py")
WHEEL = os.environ.get("SGLANG_TEST_WHEEL")
wheel = pytest.mark.skipif(not WHEEL, reason="SGLANG_TEST_WHEEL names no wheel of SGLang 0.5.20")


def run_cases(device: str, *words: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1] / "_testing")}
    if device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    argv = [sys.executable, str(CASES), device, *words]
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_the_interpreter() -> None:
    assert run_cases("cpu").startswith("outside the bound: 0;")


@wheel
def test_stock_in_the_interpreter() -> None:
    said = run_cases("cpu", str(WHEEL))
    assert "differing: 0" in said and "stock bit for bit: 207360" in said


@pytest.mark.gpu
def test_on_the_device() -> None:
    try:
        source = [str(WHEEL or stock.installed())]
    except FileNotFoundError:  # then the bound alone is tested
        source = []
    assert run_cases("cuda", *source).startswith("outside the bound: 0;")


@pytest.mark.parametrize("gate", ["swish", "silu", "sigmoid"])
def test_the_bound_can_fail(gate: str) -> None:
    """A sum over half a row, a gate of the neighbouring row and a missing weight are far outside."""
    case = cases.draw(6, "plain", gate, 3, "cpu", torch.float32)
    exact = reference.gated_rms_norm(case.x, case.z, case.weight, case.eps, gate)
    bound = reference.float32_bound(case.x, case.z, case.weight, case.eps, gate)
    halved = torch.cat((case.x[:, :64], torch.zeros(6, 64)), 1)
    for wrong in (
        reference.gated_rms_norm(halved, case.z, case.weight, case.eps, gate),
        reference.gated_rms_norm(case.x, case.z.roll(1, 0), case.weight, case.eps, gate),
        reference.gated_rms_norm(case.x, case.z, torch.ones(128), case.eps, gate),
    ):
        assert bool(((wrong - exact).abs() > 1000 * bound).any())
    plain = case.x * torch.rsqrt(case.x.square().mean(1, keepdim=True) + case.eps) * case.weight
    gated = plain * torch.sigmoid(case.z) * (1 if gate == "sigmoid" else case.z)
    assert bool(((gated - exact).abs() <= bound).all())


def test_what_it_takes() -> None:
    x, w = torch.zeros(4, 128), torch.zeros(128)
    assert kernel.takes(x, x, w) and kernel.takes(x, torch.zeros(4, 256)[:, :128], w)
    refused = [
        (x, None, w),
        (x, x[:3], w),
        (x, x, w[:64]),
        (x.T, x.T, x[:, 0]),
        (x[:0], x[:0], w),
        (x, x, torch.zeros(256)[::2]),
    ]
    refused += [(torch.zeros(4, n), torch.zeros(4, n), torch.zeros(n)) for n in (16, 96, 256)]
    refused += [(x[None], x[None], w)]
    assert not any(kernel.takes(*given) for given in refused)
    with pytest.raises(ValueError, match="not for this kernel"):
        op.norm(x, x, w, activation="gelu")
    with pytest.raises(ValueError, match="not relu"):
        reference.gated_rms_norm(x, x, w, 1e-6, "relu")


def test_rows_a_program_are_stocks() -> None:
    """132 multiprocessors: what `next_power_of_2(cdiv(rows, 264))`, at most 4, gives."""
    assert [op.rows_per_program(rows, 132) for rows in (1, 264, 265, 384, 528, 529, 1152, 9216)] == [
        1,
        1,
        2,
        2,
        2,
        4,
        4,
        4,
    ]


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_compiled_for_hopper(rows: int) -> None:
    """No spills; weights before the wait, inputs and gate before the first shuffle of the sum."""
    code = compiled.ours(rows)
    assert compiled.resources(code)["stack_bytes"] == 0
    before, after = compiled.places(code).split("W")
    assert "L" in before and "S" not in before
    assert after.startswith("LLLL" if rows == 4 else "LL") and after.count("L") == after.index("R")
    assert after.endswith("SD")


@wheel
@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_arithmetic_and_order_of_sums_are_stocks(rows: int, sigmoid: bool) -> None:
    mine, other = compiled.ours(rows, sigmoid), compiled.theirs(Path(str(WHEEL)), rows, sigmoid)
    assert compiled.arithmetic(mine) == compiled.arithmetic(other)
    assert compiled.machine_arithmetic(mine) == compiled.machine_arithmetic(other)
    assert compiled.reduction(mine) == compiled.reduction(other) and len(compiled.reduction(mine)) == 1
    # another tile is another order: the comparison can fail
    assert compiled.reduction(compiled.theirs(Path(str(WHEEL)), 1 if rows > 1 else 2, sigmoid)) != compiled.reduction(
        mine
    )


@wheel
def test_narrow_tiles_of_the_recurrence_sum_as_stocks() -> None:
    """Each column of a state takes the same instructions in the same layout, whatever the tile."""
    codes = {columns: compiled.recurrence(Path(str(WHEEL)), columns) for columns in (32, 16, 8)}
    layouts = {columns: [text.split(" ", 1)[1] for text in compiled.reduction(code)] for columns, code in codes.items()}
    assert layouts[32] == layouts[16] == layouts[8] and len(layouts[32]) == 4
    for count, names in (
        (compiled.arithmetic, ("add.f32", "mul.f32", "fma.rn.f32", "shfl.sync.bfly.b32")),
        (compiled.machine_arithmetic, ("FADD", "FMUL", "FFMA", "SHFL.BFLY")),
    ):
        counts = {columns: count(code) for columns, code in codes.items()}
        assert all(counts[32][name] > counts[16][name] for name in names)
        for name in set().union(*counts.values()):
            assert (counts[32][name] - counts[16][name]) / 16 == (counts[16][name] - counts[8][name]) / 8, name
    assert compiled.resources(codes[32])["stack_bytes"] > 0 == compiled.resources(codes[8])["stack_bytes"]
