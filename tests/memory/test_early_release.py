"""The entry `early-release`: its copies of kernels/, its switch, its contracts, and the real SGLang on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from memory.patched_engine import WHEEL, added_files, both_trees, needs_engine, needs_wheel, run, with_fault
from memory.w12_model import write_model

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.room import open_room
from specpilot_cli.memory.variants import load_variants, server_words

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "early-release"
COPIES = "sglang/kernels/jit/csrc/elementwise/early_release"


def test_the_copies_are_the_kernel_byte_for_byte(tmp_path: Path) -> None:
    copies = added_files(ENTRY, tmp_path, COPIES) / COPIES
    made = {path.name: path.read_bytes() for path in copies.iterdir()}
    room = share_dir("kernels") / "early_release"
    assert made == {name: (room / name).read_bytes() for name in ("add_norm.cuh", "row.cuh", "tvm_ffi.cuh")}


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    assert entry.status == "unmeasured" and entry.delta.vary == () and entry.applies.devices == ("sm90",)
    assert len([path for path in entry.delta.paths if not path.startswith(COPIES)]) == 5
    assert server_words([variants], []) == ()
    assert server_words([variants], ["rows=256"]) == ("@env:SGLANG_EARLY_RELEASE=256",)


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives_alone_and_with_w12_linear(tmp_path: Path) -> None:
    stock, _ = init_sglang(tmp_path / "stock", wheel=Path(str(WHEEL)))
    for names in (("early-release",), ("w12-linear", "early-release")):
        patched = tmp_path / "-".join(names)
        made = plan(open_room(None), names, stock.path)
        # of the two together no tree is recorded
        assert made.reproduces is (True if len(names) == 1 else None), made.first_difference
        materialise(made, patched)
        assert contract_fault(ENTRY, patched) is None

    # each of them can fail: other bytes, another order, another rule, another build, another default
    for path, old, new, test in (
        (f"{COPIES}/row.cuh", "fmaf(high, high,", "fmaf(high, low,", "test_every_copy_is_its_source"),
        ("sglang/kernels/ops/early_release.py", 'RELEASE", "0")', 'RELEASE", "1")', "test_it_is_off_unless_asked_for"),
        ("sglang/kernels/ops/early_release.py", "rows <= ROWS", "rows <= 2 * ROWS", "test_which_norms_are_taken"),
        ("sglang/kernels/ops/attention/decode_attention.py", "=use_pdl and early", "=early", "test_attention"),
        ("sglang/kernels/ops/activation/activation.py", '"-DSGL_RELEASE_FIRST"', '"-DFIRST"', "test_the_activation"),
        ("sglang/srt/layers/layernorm.py", "weight, eps, 1.0)", "weight, eps, 0.0)", "test_a_norm"),
    ):
        assert test in with_fault(patched, path, old, new, lambda: contract_fault(ENTRY, patched)), old


@pytest.mark.slow
@needs_engine
def test_the_real_engine_on_a_cpu_is_stock_with_the_switch_on(tmp_path: Path) -> None:
    trees = both_trees(tmp_path, "early-release")
    write_model(tmp_path / "model")
    words = (str(HERE / "w12_generate.py"), str(tmp_path / "model"), "none")
    said = []
    for env in (trees["stock"], trees["patched"] | {"SGLANG_EARLY_RELEASE": "256"}):
        done = run(env, *words)
        assert done.returncode == 0, done.stderr[-3000:]
        said.append(done.stdout)
    assert said[0] == said[1] and said[0]
