"""Verification and commit of Gated DeltaNet layers against float64. On a CPU the kernels run in Triton's interpreter.

The interpreter has to be chosen before Triton is imported, so those tests run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from specpilot_kernels.gdn_tree import cases, op, reference  # noqa: E402

CASES = Path(__file__).with_name("cases.py")


def run_cases(device: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1] / "_testing")}
    if device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    return subprocess.run([sys.executable, str(CASES), device], capture_output=True, text=True, env=env, check=False)


def test_both_variants_in_the_interpreter() -> None:
    done = run_cases("cpu")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ", 0 wrong" in done.stdout and int(done.stdout.split()[0]) >= 150


@pytest.mark.gpu
def test_both_variants_on_the_device() -> None:
    done = run_cases("cuda")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_parent_is_far_outside_the_bound() -> None:
    """The bound can fail: a sibling taken as the parent, and a stale state, exceed it a thousand times."""
    case = cases.draw("random", "plain", 1, 12, (1, 2), (32, 32), 5, "cpu")
    exact = reference.verify(case.x.to(torch.float64), case.before, case.parents, case.scale)
    bound = cases.error_bound(case)
    other = case.parents.clone()
    other[0, 7] = next(row for row in range(7) if row != int(other[0, 7]))
    sibling = reference.verify(case.x.to(torch.float64), case.before, other, case.scale)
    assert cases.worst(sibling.float(), exact, bound) > 1000
    stale = reference.verify(case.x.to(torch.float64), case.before * 0.9, case.parents, case.scale)
    assert cases.worst(stale.float(), exact, bound) > 1000
    assert cases.worst(exact.float(), exact, bound) <= 1


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 64), st.data())
def test_ancestors(rows: int, data: st.DataObject) -> None:
    parents = [data.draw(st.integers(-1, row - 1)) for row in range(rows)]
    words = op.ancestors(torch.tensor([parents]))[0].tolist()
    for row in range(rows):
        up, expected = row, 0
        while up >= 0:
            expected |= 1 << up
            up = parents[up]
        assert words[row] % 2**64 == expected


def test_three_pieces_carry_a_float32() -> None:
    """What the tensor cores get instead of the state: exact for every magnitude down to 2^-100."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.randint(-100, 100, (1 << 16,), generator=generator)
    value = (1 + torch.rand(1 << 16, generator=generator)) * torch.exp2(exponents.float())
    value *= torch.randint(0, 2, (1 << 16,), generator=generator) * 2 - 1
    high = value.bfloat16()
    middle = (value - high.float()).bfloat16()
    low = (value - high.float() - middle.float()).bfloat16()
    assert torch.equal(high.double() + middle.double() + low.double(), value.double())


def test_what_does_not_fit_is_refused() -> None:
    case = cases.draw("chain", "plain", 2, 4, (1, 2), (32, 32), 0, "cpu")
    tree = op.ancestors(case.parents)
    with pytest.raises(ValueError, match="state must be float32"):
        op.verify(case.x, case.state.half(), case.slots, tree, 1.0)
    with pytest.raises(ValueError, match="slots is"):
        op.verify(case.x, case.state, case.slots[:1], tree, 1.0)
    with pytest.raises(ValueError, match="tree is"):
        op.verify(case.x, case.state, case.slots, tree[:, :3], 1.0)
    with pytest.raises(ValueError, match="at most 64 rows"):
        op.ancestors(torch.zeros(1, 65))
    with pytest.raises(ValueError, match="powers of two"):
        narrow = cases.draw("chain", "plain", 1, 4, (1, 1), (24, 32), 0, "cpu")
        op.verify(narrow.x, narrow.state, narrow.slots, op.ancestors(narrow.parents), 1.0)
    with pytest.raises(ValueError, match="path"):
        op.commit(case.x, case.state, case.slots, torch.zeros(1, 3), torch.zeros(2))


@pytest.mark.parametrize("name", ["verify path", "verify wy", "commit path", "commit wy"])
def test_compiles_for_hopper(name: str) -> None:
    """To a cubin, without spills to local memory, at the sizes of the benchmark; the fastest commit spills a little."""
    code = (
        "from mount import mount; mount();"
        "from specpilot_kernels.gdn_tree import compiled;"
        f"print(compiled.resources(compiled.build({name!r}))['stack_bytes'])"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env["PYTHONPATH"] = str(CASES.parents[1] / "_testing")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= (32 if name == "commit wy" else 0)
