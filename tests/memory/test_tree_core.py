"""The entry `tree-core`: its switch, its copies of kernels/, and its contracts on the files that it adds."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory.patched_engine import added_files, with_fault

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.guard import render
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

ENTRY = share_dir("memory") / "sglang-0.5.20" / "tree-core"
FOLDER = "sglang/srt/speculative/draft_tree"


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the delta adds; the changed ones need stock."""
    return added_files(ENTRY, tmp_path_factory.mktemp("tree"), FOLDER)


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None and entry.status == "unmeasured"
    changed = [path for path in entry.delta.paths if not path.startswith(FOLDER)]
    assert sorted(Path(path).name for path in changed) == [
        "allocation_sizing.py", "dflash_utils.py", "spec.py", "spec_info.py", "speculative_hook.py",
    ]  # fmt: skip
    assert server_words([variants], []) == ()
    words = server_words([variants], ["nodes=32", "mode=ddtree"])
    assert words == ("--speculative-tree-nodes", "32", "--speculative-tree-mode", "ddtree")


def test_the_region_in_the_tree_is_the_entrys(added: Path) -> None:
    assert (added / FOLDER / "region.py").read_text() == render(load_entry(ENTRY).entry)


def test_contracts_hold_on_the_added_files(added: Path) -> None:
    assert contract_fault(ENTRY, added) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "test"),
    [
        ("arrays.py", "widths = prefix_lens.long() + rows", "widths = prefix_lens.long() + rows - 1", "mask"),
        ("arrays.py", "(parents + 1 == at.view(-1, 1)) & ", "(parents + 1 <= at.view(-1, 1)) & ", "longest"),
        ("accept.py", "fits = node & (above == here)", "fits = node & (above <= here)", "interpreter"),
        ("rows.py", "other < request", "other <= request", "interpreter"),
        ("compaction.py", "step < tl.load(counts + request)", "step <= tl.load(counts + request)", "interpreter"),
        ("pair_scores.py", "1 + (slot - 1) // K", "(slot - 1) // K", "interpreter"),
        ("beam.py", "first // BEAM, first % BEAM", "first // BEAM, first * 0", "interpreter"),
        ("regime.py", "range(before + 1, size + 1)", "range(size, size + 1)", "regime"),
        ("lattice.py", "base[:, :1] += head", "base[:, :1] -= head", "markov"),
        ("selection/op.py", "MOST_EDGES", "MOST_EDGES + 1", "vendored"),
    ],
)
def test_a_planted_fault_is_noticed(added: Path, name: str, old: str, new: str, test: str) -> None:
    assert test in with_fault(added, f"{FOLDER}/{name}", old, new, lambda: contract_fault(ENTRY, added))
