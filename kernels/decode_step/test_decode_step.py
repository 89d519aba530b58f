"""The small kernels of a decode step: against their reference in Triton's interpreter and on a device.

The interpreter has to be chosen before Triton is imported, so those cases run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specpilot_kernels.decode_step import op, reference  # noqa: E402

CASES = Path(__file__).with_name("cases.py")


def run_cases(device: str) -> str:
    env = dict(os.environ)
    if device == "cpu":
        env["TRITON_INTERPRET"] = "1"
    done = subprocess.run([sys.executable, str(CASES), device], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    assert run_cases("cpu") == "60 cases right on cpu\n"


@pytest.mark.gpu
def test_on_the_device() -> None:
    assert run_cases("cuda") == "60 cases right on cuda\n"


def test_attention_is_what_torch_computes() -> None:
    """Against scaled_dot_product_attention over the filled slots, in float64."""
    torch.manual_seed(0)
    rows, heads, groups, size, at = 2, 6, 3, 16, 5
    keys, values = torch.randn(2, rows, groups, 9, size, dtype=torch.float64)
    qkv = torch.randn(rows, (heads + 2 * groups) * size, dtype=torch.float64)
    angle = torch.rand(9, size // 2, dtype=torch.float64).repeat(1, 2)
    y = reference.attend(qkv, angle.cos(), angle.sin(), torch.tensor([at]), keys, values, 0.25)
    q = reference.rotate(qkv.view(rows, -1, size)[:, :heads], angle.cos()[at], angle.sin()[at])
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], keys[:, :, : at + 1], values[:, :, : at + 1], scale=0.25, enable_gqa=True
    )
    assert torch.allclose(y, expected.reshape(rows, -1), rtol=1e-5, atol=1e-6)  # its sums are float32
    later = qkv.view(rows, -1, size)[:, heads + groups :]
    assert torch.equal(values[:, :, at], later)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"qkv": torch.zeros(1, 65)}, "do not fit"),
        ({"keys": torch.zeros(1, 3, 8, 16), "values": torch.zeros(1, 3, 8, 16)}, "not taken"),
        ({"position": torch.zeros(1)}, "int64"),
        ({"cos": torch.zeros(4, 16), "sin": torch.zeros(4, 16)}, "not taken"),
        ({"qkv": torch.zeros(1, 64).bfloat16()}, "one type"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, torch.Tensor], message: str) -> None:
    given = {
        "qkv": torch.zeros(1, 64),
        "cos": torch.zeros(8, 16),
        "sin": torch.zeros(8, 16),
        "position": torch.zeros(1, dtype=torch.int64),
        "keys": torch.zeros(1, 1, 8, 16),
        "values": torch.zeros(1, 1, 8, 16),
    }
    op.attend(**given, scale=1.0)
    with pytest.raises(ValueError, match=message):
        op.attend(**{**given, **change}, scale=1.0)


def test_rows_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no rows"):
        op.rms_norm(torch.zeros(2, 4), torch.zeros(5), 1e-6)
    with pytest.raises(ValueError, match="one matrix"):
        op.silu_mul(torch.zeros(2, 5))
