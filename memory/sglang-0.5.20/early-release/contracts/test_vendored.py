"""What the delta copies from kernels/ is what is there, byte for byte. Runs in the tree that the entry reproduces."""

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
FOLDER = "sglang/kernels/jit/csrc/elementwise/early_release"


def test_every_copy_is_its_source() -> None:
    for source, target in COPIES.items():
        assert (TREE / target).read_bytes() == (KERNELS / source).read_bytes(), f"{target} is not kernels/{source}"


def test_every_file_of_the_folder_is_declared() -> None:
    assert {path.relative_to(TREE).as_posix() for path in (TREE / FOLDER).iterdir()} == set(COPIES.values())
