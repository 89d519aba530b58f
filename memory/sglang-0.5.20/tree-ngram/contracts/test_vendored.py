"""What the delta copies from kernels/ is what is there: up to declared imports.

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
FOLDER = "sglang/srt/speculative/draft_tree/ngram"


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


def test_every_file_of_the_folder_is_declared() -> None:
    here = {path.relative_to(TREE).as_posix() for path in (TREE / FOLDER).iterdir() if path.is_file()}
    assert here == {*DECLARED["copies"].values(), f"{FOLDER}/__init__.py"}


def test_a_changed_byte_would_be_noticed() -> None:
    source, target = next(iter(DECLARED["copies"].items()))
    data = bytearray((TREE / target).read_bytes())
    data[-2] ^= 1
    assert digest(bytes(data)) != digest(expected(source))
