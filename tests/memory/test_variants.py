"""`variants.toml`: switches with their ranges, and the server words for a choice."""

from __future__ import annotations

from pathlib import Path

import pytest

from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.memory.variants import Variants, load_variants, server_words

GOOD = """schema = "specpilot.variants/1"

[[variants]]
name = "w12"
flag = "--enable-w12"
default = false
architectures = ["sm90"]

[[variants.knobs]]
name = "splits"
environment = "W12_SPLITS"
default = 4
min = 1
max = 16
retune = "specpilot kernels bench w12_gemm"

[[variants.knobs]]
name = "tile"
flag = "--w12-tile"
default = "128x64"
choices = ["128x64", "64x64"]
"""


def registry(folder: Path, text: str = GOOD) -> Variants:
    """The registry of that text."""
    (folder / "variants.toml").write_text(text)
    found = load_variants(folder)
    assert found is not None
    return found


def test_words_for_the_server(tmp_path: Path) -> None:
    assert load_variants(tmp_path) is None
    good = registry(tmp_path)
    assert server_words([good], ()) == ()
    assert server_words([good], ("w12=on",)) == ("--enable-w12",)
    assert server_words([good], ("w12=false",)) == ()
    chosen = ("tile=64x64", "splits=8", "w12=true")
    assert server_words([good], chosen) == ("--enable-w12", "@env:W12_SPLITS=8", "--w12-tile", "64x64")


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("w13=1", "no variant"),
        ("w12", "no variant"),
        ("splits=17", "17 is not from 1 to 16"),
        ("splits=many", "many is no number"),
        ("tile=1x1", "1x1 is none of 128x64, 64x64"),
    ],
)
def test_choices_that_are_refused(tmp_path: Path, choice: str, said: str) -> None:
    with pytest.raises(UsageFault, match=said):
        server_words([registry(tmp_path)], (choice,))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("variants/1", "variants/2", "schema"),
        ("default = 4", "default = 17", "splits: default 17 is not from 1 to 16"),
        ("default = 4", 'default = "x"', "x is no number"),
        ('default = "128x64"', 'default = "2x2"', "none of"),
        ('flag = "--enable-w12"\n', "", "w12: needs a flag or an environment variable"),
        ('flag = "--enable-w12"', 'flag = "--enable-w12"\nenvironment = "W12"', "and not both"),
        ('flag = "--enable-w12"', 'flag = "--enable w12"', "variants.0.flag"),
        ('name = "tile"', 'name = "splits"', "splits is there twice"),
        ("min = 1", "least = 1", "least"),
        ("default = false\n", "", "variants.0.default"),
        ("[[variants]]", "[[variants", "not TOML"),
    ],
)
def test_damaged_ones_name_file_and_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(InputUnusable) as caught:
        registry(tmp_path, GOOD.replace(old, new, 1))
    assert "variants.toml" in str(caught.value) and said in str(caught.value)
