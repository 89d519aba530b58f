"""The kernel of the tree is kernels/gated_norm/kernel.py, byte for byte; `kernels/` is that of the same checkout."""

import hashlib
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[4] / "kernels" / "gated_norm" / "kernel.py"
COPY = Path.cwd() / "sglang/kernels/ops/attention/fla/layernorm_gated_few_rows.py"


def digest(data: bytes) -> str:
    """sha256."""
    return hashlib.sha256(data).hexdigest()


def test_the_copy_has_the_digest_of_its_source() -> None:
    assert digest(COPY.read_bytes()) == digest(SOURCE.read_bytes())


def test_a_changed_byte_would_be_noticed() -> None:
    data = bytearray(COPY.read_bytes())
    data[-2] ^= 1
    assert digest(bytes(data)) != digest(SOURCE.read_bytes())
