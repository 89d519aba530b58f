"""What the delta copies from kernels/ is what is there: CUDA files byte for byte, Python files up to declared imports.

Runs in the tree that the entry reproduces; `kernels/` is that of the same checkout or installation as this file.
"""

import hashlib
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
KERNELS = HERE.parents[3] / "kernels"
TREE = Path.cwd()
DECLARED = tomllib.loads((HERE / "vendored.toml").read_text(encoding="utf-8"))
FOLDERS = ("sglang/kernels/jit/csrc/gemm/certified_head", "sglang/kernels/jit/csrc/gemm/w12_gemm")


def digest(data: bytes) -> str:
    """sha256."""
    return hashlib.sha256(data).hexdigest()


def expected(source: str) -> bytes:
    """A file of kernels/ as it has to stand in the tree."""
    data = (KERNELS / source).read_bytes()
    for old, new in DECLARED["rename"].items() if source.endswith(".py") else ():
        data = data.replace(old.encode(), new.encode())
    return data


def test_every_copy_has_the_digest_of_its_source() -> None:
    for source, target in DECLARED["copies"].items():
        assert digest((TREE / target).read_bytes()) == digest(expected(source)), f"{target} is not kernels/{source}"


def test_every_cuda_file_of_the_tree_is_declared() -> None:
    here = {p.relative_to(TREE).as_posix() for folder in FOLDERS for p in (TREE / folder).iterdir() if p.is_file()}
    assert here and here <= set(DECLARED["copies"].values())


def test_a_changed_byte_would_be_noticed() -> None:
    source, target = next(iter(DECLARED["copies"].items()))
    data = bytearray((TREE / target).read_bytes())
    data[-2] ^= 1
    assert digest(bytes(data)) != digest(expected(source))
