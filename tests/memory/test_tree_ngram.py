"""The entry `tree-ngram`: switch, copies of kernels/, contracts, and texts beside `tree-hybrid` in the real SGLang.

Environment of the slow ones: see `test_tree_hybrid.py`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from memory.patched_engine import added_files, needs_engine, needs_wheel, with_fault
from memory.tree_hybrid_model import write_models
from memory.tree_hybrid_on_cpu import allow_hybrid_trees

from memory import test_tree_hybrid as hybrid
from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.room import open_room
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

ROOM = share_dir("memory") / "sglang-0.5.20"
ENTRY = ROOM / "tree-ngram"
FOLDER = "sglang/srt/speculative/draft_tree"


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that `tree-core` adds, as this entry leaves them, and its own."""
    folder = added_files(ROOM / "tree-core", tmp_path_factory.mktemp("ngram"), FOLDER)
    return added_files(ENTRY, folder, FOLDER)


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None and entry.status == "unmeasured" and entry.requires == ("tree-core",)
    others = set(load_entry(ROOM / "tree-hybrid").entry.delta.paths) & set(entry.delta.paths)
    assert not others, "they go beside each other"
    assert server_words([variants], []) == ()
    assert server_words([variants], ["ngram=7"]) == ("--speculative-tree-ngram", "7")


def test_contracts_hold_on_the_added_files(added: Path) -> None:
    assert contract_fault(ENTRY, added) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "old", "new", "test"),
    [
        ("request_text.py", "            if id(request) in known:\n                continue\n", "", "decodes_beside"),
        ("request_text.py", "(ids < vocabulary)", "(ids <= vocabulary)", "no_words"),
        ("request_text.py", "            self._record(batch, done, anchors, done.accept_lens)\n", "", "prompts_then"),
        ("request_text.py", "done.next_token_ids, nothing)", "done.next_token_ids, nothing + 1)", "prompts_then"),
        ("sampler.py", "if self.text is not None:", "if self.text is None:", "chains_are_rows"),
        ("ngram/graft.py", "BLOCK, SEARCH_WARPS = 2048, 4", "BLOCK, SEARCH_WARPS = 2048, 8", "vendored"),
    ],
)
def test_a_planted_fault_is_noticed(added: Path, name: str, old: str, new: str, test: str) -> None:
    assert test in with_fault(added, f"{FOLDER}/{name}", old, new, lambda: contract_fault(ENTRY, added))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both entries' tree for a CPU, `stubs`, `models`, and AR's texts."""
    path, wheel = tmp_path_factory.mktemp("both"), os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(path / "stock", wheel=Path(wheel) if wheel else None)
    made = plan(open_room(None), ("tree-ngram", "tree-hybrid"), stock.path)
    again = plan(open_room(None), ("tree-hybrid", "tree-ngram"), stock.path)
    assert made.composition.tree == again.composition.tree and made.reproduces is None
    materialise(made, path / "tree")
    allow_hybrid_trees(path / "tree", plain=True)
    write_stubs(path / "stubs")
    write_models(path / "models")
    (path / "ar.json").write_text(json.dumps(hybrid.run(path, "ar", {})["texts"]))
    return path


@pytest.mark.slow
@needs_engine
@needs_wheel
@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_beside_tree_hybrid_texts_are_ars(drafter: str, place: Path) -> None:
    tree: dict[str, Any] = {"speculative_tree_nodes": 16, "speculative_tree_max_requests": 0}
    plain, chains = (hybrid.run(place, drafter, {**tree, "speculative_tree_ngram": n}) for n in (0, 7))
    assert plain["texts"] == chains["texts"] == hybrid.expected(place)
    assert chains["verify"] != plain["verify"], "chains were there"
