"""`entry.toml` is refused when it is not exactly what it should be."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.memory.entry import load_entry

GOOD = """schema = "specpilot.entry/1"
id = "tree"
title = "Draft trees"
kind = "tree"
status = "unmeasured"
requires = ["ground"]
conflicts = []

[base]
engine = "toy"
tree = "1111111111111111111111111111111111111111"

[reproduces]
tree = "2222222222222222222222222222222222222222"

[delta]
sha256 = "3333333333333333333333333333333333333333333333333333333333333333"
paths = ["engine/tree.py"]
vary = ["speculative_tree_nodes"]

[applies]
drafters = ["dflash2"]
devices = ["sm90", "cpu"]
requests = { min = 1, max = 16 }

[origin]
date = 2026-08-01
source = "paper, section 4.2"
"""


def folder_with(tmp_path: Path, text: bytes | str, name: str = "toy/tree") -> Path:
    """An entry folder with that `entry.toml`."""
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "entry.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return folder


def test_a_good_one(tmp_path: Path) -> None:
    entry = load_entry(folder_with(tmp_path, GOOD)).entry
    assert entry.requires == ("ground",)
    assert entry.origin.date == "2026-08-01"
    assert entry.applies.requests is not None and entry.applies.requests.max == 16


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("specpilot.entry/1", "specpilot.entry/2"),
        ('id = "tree"', 'id = "other"'),
        ('id = "tree"', 'id = "../tree"'),
        ('id = "tree"', 'id = "Tree"'),
        ('kind = "tree"', 'kind = "magic"'),
        ('status = "unmeasured"', 'status = "proven"'),
        ('engine = "toy"', 'engine = "other"'),
        ("1" * 40, "1" * 39),
        ("2" * 40, "X" * 40),
        ("3" * 64, "3" * 40),
        ('paths = ["engine/tree.py"]', "paths = []"),
        ('vary = ["speculative_tree_nodes"]', 'vary = ["a b"]'),
        ('requires = ["ground"]', f"requires = {[f'e{n}' for n in range(13)]}"),
        ('requires = ["ground"]', "requires = [1]"),
        ("min = 1", "min = true"),
        ("min = 1", "min = 1.5"),
        ("[origin]", "[origin]\nspeedup = 1.5"),
        ('title = "Draft trees"', 'title = ""'),
        ('title = "Draft trees"\n', ""),
        ("[delta]", "[delta"),
        ('kind = "tree"', 'kind = "tree"\nkind = "tree"'),
    ],
)
def test_damaged(tmp_path: Path, old: str, new: str) -> None:
    assert old in GOOD
    with pytest.raises(InputUnusable) as caught:
        load_entry(folder_with(tmp_path, GOOD.replace(old, new, 1)))
    assert "entry.toml" in str(caught.value)
    assert str(caught.value).count("\n") <= 2


MORE = """
[attacks]
factor = "kernels"
classes = ["gemm*"]

[[dead_ends]]
tried = "11 bits a weight"
why = "decoding took 3 times as long (paper, section 4.1)"

[[tried]]
quantity = "gain"
value = 0.97
unit = ""
deployment = "dense8b__dflash__h200-sxm__r1"
source = "evidence/pair.json"
"""


def test_figures_dead_ends_and_retractions(tmp_path: Path) -> None:
    text = GOOD.replace('status = "unmeasured"', 'status = "negative"\nunverified = ["sampling"]') + MORE
    entry = load_entry(folder_with(tmp_path, text)).entry
    assert entry.attacks is not None and entry.attacks.classes == ("gemm*",)
    assert (entry.tried[0].value, entry.dead_ends[0].tried, entry.unverified) == (
        0.97,
        "11 bits a weight",
        ("sampling",),
    )
    retired = GOOD.replace("unmeasured", "retired") + '\n[retraction]\ndate = 2026-08-02\nwhy = "the noise was wrong"\n'
    assert load_entry(folder_with(tmp_path, retired)).entry.retraction is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("unmeasured", "negative"), "tried: status 'negative' needs the figures"),
        (GOOD + '[retraction]\ndate = "2026"\nwhy = "x"\n', "retraction: status is 'unmeasured'"),
        (GOOD.replace("unmeasured", "retired") + '[retraction]\ndate = "2026"\n', "retraction.why"),
        (GOOD.replace("min = 1, max = 16", "min = 17, max = 16"), "applies.requests: min 17 is above max 16"),
        (GOOD + MORE.replace("kernels", "luck"), "attacks.factor"),
        (GOOD + MORE.replace("value = 0.97", "value = nan"), "tried.0.value"),
        (GOOD + MORE.replace('quantity = "gain"\n', ""), "tried.0.quantity"),
    ],
)
def test_the_key_at_fault_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputUnusable) as caught:
        load_entry(folder_with(tmp_path, text))
    assert "entry.toml" in str(caught.value) and said in str(caught.value)


@pytest.mark.parametrize(
    "data", [b"", b"\xff\xfe", b"\0" * 10, GOOD.encode("utf-16"), b"[" * 100_000, b"x = 1\n" * 60_000]
)
def test_not_toml_at_all(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputUnusable):
        load_entry(folder_with(tmp_path, data))


def test_missing_linked_and_misplaced(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="cannot be read"):
        load_entry(tmp_path / "toy/nothing")
    folder = folder_with(tmp_path, GOOD)
    (folder / "entry.toml").rename(tmp_path / "real.toml")
    (folder / "entry.toml").symlink_to(tmp_path / "real.toml")
    with pytest.raises(InputUnusable, match="symbolic link"):
        load_entry(folder)
    with pytest.raises(InputUnusable, match="must be <engine>/<id>"):
        load_entry(folder_with(tmp_path, GOOD, "toy/trees"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255), cut=st.booleans())
def test_any_damage_is_refused_or_harmless(tmp_path: Path, at: int, byte: int, cut: bool) -> None:
    data = GOOD.encode()
    damaged = data[:at] if cut else data[:at] + bytes([byte]) + data[at + 1 :]
    try:
        entry = load_entry(folder_with(tmp_path, damaged)).entry
    except InputUnusable as error:
        assert str(error).count("\n") <= 2
    else:
        assert (entry.id, entry.base.engine) == ("tree", "toy")
