"""What the delta copies from kernels/ is what is there, byte for byte.

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
COPIES = tomllib.loads((HERE / "vendored.toml").read_text(encoding="utf-8"))["copies"]
FOLDER = "sglang/kernels/jit/csrc/attention/gdn_tree"


def digest(data: bytes) -> str:
    """sha256."""
    return hashlib.sha256(data).hexdigest()


def test_every_copy_has_the_digest_of_its_source() -> None:
    for source, target in COPIES.items():
        ours, theirs = (TREE / target).read_bytes(), (KERNELS / source).read_bytes()
        assert digest(ours) == digest(theirs), f"{target} is not kernels/{source}"


def test_every_cuda_file_of_the_tree_is_declared() -> None:
    here = {path.relative_to(TREE).as_posix() for path in (TREE / FOLDER).iterdir() if path.is_file()}
    assert here == set(COPIES.values())
