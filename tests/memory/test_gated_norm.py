"""The entry `gated-norm`: its copy of kernels/, its switch, and its contracts in the tree that it gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory.patched_engine import added_files, entry_tree, needs_wheel, with_fault

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

ENTRY = share_dir("memory") / "sglang-0.5.20" / "gated-norm"
COPY = "sglang/kernels/ops/attention/fla/layernorm_gated_few_rows.py"


def test_the_copy_is_the_kernel_byte_for_byte(tmp_path: Path) -> None:
    kernel = share_dir("kernels") / "gated_norm" / "kernel.py"
    assert (added_files(ENTRY, tmp_path, COPY) / COPY).read_bytes() == kernel.read_bytes()


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    assert entry.status == "unmeasured" and entry.delta.vary == () and len(entry.delta.paths) == 2
    assert server_words([variants], []) == ()
    assert server_words([variants], ["rows=0"]) == ("@env:SGLANG_GATED_NORM_ROWS=0",)


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives(tmp_path: Path) -> None:
    patched = entry_tree(tmp_path, "gated-norm")
    assert contract_fault(ENTRY, patched) is None

    # each of them can fail: another kernel, another sum, another rule of who takes which call
    for path, old, new, test in (
        (COPY, "ahead of the reduction", "before the reduction", "test_vendored"),
        (COPY, "tl.sum(xbar * xbar, axis=1) / N", "tl.sum(xbar * xbar / N, axis=1) * 1.0000002", "test_bits"),
        (COPY.replace("_few_rows", ""), "and bias is None", "and True", "test_everything_else_is_stocks"),
    ):
        assert test in with_fault(patched, path, old, new, lambda: contract_fault(ENTRY, patched)), old
