"""What the delta copies from kernels/ is what is there, up to declared imports.

Runs in the tree that the entry reproduces; `kernels/` is that of the same checkout or installation as this file.
"""

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


def test_every_copy_is_its_source() -> None:
    for source, target in DECLARED["copies"].items():
        text = (KERNELS / source).read_text(encoding="utf-8")
        for old, new in DECLARED["rename"].items():
            text = text.replace(old, new)
        assert (TREE / target).read_text(encoding="utf-8") == text, f"{target} is not kernels/{source}"


def test_every_file_of_the_folder_is_declared() -> None:
    folder = TREE / "sglang/srt/layers/attention/linear/gdn_commit/gdn_wy"
    here = {path.relative_to(TREE).as_posix() for path in folder.glob("*.py") if path.name != "__init__.py"}
    assert here == {copy for copy in DECLARED["copies"].values() if copy.endswith(".py")}
