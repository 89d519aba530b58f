"""The entry `gdn-commit`: its copies of kernels/, its switch, its contracts, pools and backends in the real SGLang.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_sglang.drafters_on_cpu import replace
from memory.gdn_on_cpu import allow_gdn_on_cpu, write_models
from memory.gdn_served import served
from memory.patched_engine import added_files, checked, entry_tree, needs_engine, needs_wheel, with_fault

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "gdn-commit"
CUDA = "sglang/kernels/jit/csrc/attention/gdn_tree"
OURS = "sglang/srt/layers/attention/linear/gdn_commit"


def test_cuda_files_are_the_kernels_byte_for_byte(tmp_path: Path) -> None:
    copies = sorted((added_files(ENTRY, tmp_path, CUDA) / CUDA).iterdir())
    assert len(copies) == 5
    for copy in copies:
        assert copy.read_bytes() == (share_dir("kernels") / "gdn_tree" / copy.name).read_bytes()


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    changed = [path for path in entry.delta.paths if not path.startswith((CUDA, OURS))]
    assert len(changed) == 7, "recurrence, convolution, scatter, two backends, pool, budget"
    assert entry.status == "unmeasured" and entry.delta.vary == ("max_total_num_tokens",)
    assert server_words([variants], []) == ()
    assert server_words([variants], ["commit=cuda"]) == ("@env:SGLANG_GDN_COMMIT=cuda",)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the entry reproduces."""
    return entry_tree(tmp_path_factory.mktemp("gdn-commit"), "gdn-commit")


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives(patched: Path) -> None:
    assert contract_fault(ENTRY, patched) is None

    # each of them can fail: an accepted row less, a key head too far, another order of steps, rows of the next request
    walk, rows = f"{OURS}/triton_commit.py", f"{OURS}/rows.py"
    for path, old, new, test in (
        (rows, "torch.add(last, 1,", "torch.add(last, 0,", "test_"),
        (walk, "p_row + KEYS_AT + (", "p_row + KEYS_AT + K + (", "test_routes"),
        (walk, "b_v *= b_beta\n", "b_v *= b_beta * 1.0000002\n", "test_routes"),
        (walk, "i_n.to(tl.int64) * rows +", "(i_n.to(tl.int64) + 1) * rows +", "test_routes"),
        (f"{OURS}/native.py", "sizes.rows * row,\n            row,", "row,\n            row,", "test_rows"),
        (f"{CUDA}/commit.cuh", "#pragma once", "#pragma  once", "test_vendored"),
    ):
        assert test in with_fault(patched, path, old, new, lambda: contract_fault(ENTRY, patched)), old


@pytest.mark.slow
@needs_wheel
@needs_engine
def test_in_the_real_engine(patched: Path, tmp_path: Path) -> None:
    """Pools, budget, refusals and whole verify steps through the engine's backends, in Triton's interpreter."""
    checked(patched, HERE / "gdn_commit_engine_checks.py", tmp_path)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a stock and a patched engine that run on a CPU, models and stubs."""
    folder = tmp_path_factory.mktemp("engines")
    entry_tree(folder, "gdn-path-verify")
    write_models(folder / "models")
    write_stubs(folder / "stubs")
    for name in ("stock", "patched"):
        allow_gdn_on_cpu(folder / name)
    return folder


TRITON, PATH = {"SGLANG_GDN_COMMIT": "triton"}, {"SGLANG_GDN_COMMIT": "triton", "SGLANG_GDN_TREE": "path"}


@pytest.mark.slow
@needs_wheel
@needs_engine
def test_prefixes_that_were_tracked_while_decoding_have_stocks_states(engines: Path) -> None:
    """A second turn of every request takes up 64 tokens from the radix cache: tokens and log-probabilities."""
    models, stubs = engines / "models", engines / "stubs"
    expected = served(engines / "stock", models, stubs, "radix")
    assert [text["cached"] for text in expected] == [0, 0, 0, 64, 64, 64]
    assert served(engines / "patched", models, stubs, "radix", **TRITON) == expected


@pytest.mark.slow
@needs_wheel
@needs_engine
def test_served_texts_are_stocks_to_the_last_bit(engines: Path) -> None:
    """A hybrid target with a DFLASH drafter in the real engine, its scheduler overlapped: tokens and log-probabilities.

    A planted fault, a row less committed, shows that the states matter.
    """
    models, stubs, patched = engines / "models", engines / "stubs", engines / "patched"
    expected = served(engines / "stock", models, stubs)
    assert len({tuple(text["ids"]) for text in expected}) == 3 and all(text["steps"] >= 7 for text in expected)
    for switches in ({}, TRITON, PATH):
        assert served(patched, models, stubs, **switches) == expected, switches
    replace(patched / OURS / "rows.py", "torch.add(last, 1,", "torch.add(last, 0,")
    assert served(patched, models, stubs, **TRITON) != expected
