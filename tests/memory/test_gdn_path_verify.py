"""The entry `gdn-path-verify`: what it touches, its contracts, and its backends in the real SGLang 0.5.20.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from memory.patched_engine import checked, entry_tree, needs_engine, needs_wheel, with_fault

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "gdn-path-verify"
OURS = "sglang/srt/layers/attention/linear/gdn_commit"


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    assert entry.requires == ("gdn-commit",) and entry.status == "unmeasured" and entry.delta.vary == ()
    assert len([path for path in entry.delta.paths if not path.startswith(OURS)]) == 3, "two backends and the pool"
    assert server_words([variants], []) == ()
    assert server_words([variants], ["tree=path"]) == ("@env:SGLANG_GDN_TREE=path",)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the entry reproduces."""
    return entry_tree(tmp_path_factory.mktemp("gdn-path-verify"), "gdn-path-verify")


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives(patched: Path) -> None:
    assert contract_fault(ENTRY, patched) is None

    # each of them can fail: a sibling for a parent, the newest tap first, a stale window, a layer's neighbour
    kernels, rows = f"{OURS}/tree_kernels.py", f"{OURS}/tree_rows.py"
    for path, old, new, test in (
        (kernels, "row == parent, found, 0", "row == parent - 1, found, 0", "test_every_path"),
        (kernels, "one = _above(tree, row)\n", "one = row - 1\n", "test_every_path"),
        (kernels, "acc += oldest * ", "acc += old * ", "test_every_path"),
        (
            kernels,
            "three, two, one = end - 2, end - 1, end\n",
            "three, two, one = end - 3, end - 2, end - 1\n",
            "test_",
        ),
        (rows, "track_slots, track_last, steps", "track_slots, last, steps", "test_every_path"),
        (f"{OURS}/native.py", "place * source.layer", "(place + 1) % 2 * source.layer", "test_the_verify_launch"),
        (f"{OURS}/gdn_tree/triton_path.py", "COLUMNS = 32", "COLUMNS = 16", "test_vendored"),
    ):
        assert test in with_fault(patched, path, old, new, lambda: contract_fault(ENTRY, patched)), old


@pytest.mark.slow
@needs_wheel
@needs_engine
@pytest.mark.parametrize("checks", ["gdn_path_engine_checks.py", "gdn_commit_engine_checks.py"])
def test_in_the_real_engine(patched: Path, tmp_path: Path, checks: str) -> None:
    """Chains through the tree's kernels; and, without its switch, all that `gdn-commit` promises."""
    checked(patched, HERE / checks, tmp_path)
