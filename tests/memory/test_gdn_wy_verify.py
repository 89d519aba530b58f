"""The entry `gdn-wy-verify`: what it touches, its contracts, its backends and served texts in the real SGLang 0.5.20.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from engine_sglang.drafters_on_cpu import replace
from memory.gdn_on_cpu import allow_gdn_on_cpu, write_models
from memory.gdn_served import served
from memory.patched_engine import checked, entry_tree, needs_engine, needs_wheel, with_fault

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "gdn-wy-verify"
OURS = "sglang/srt/layers/attention/linear/gdn_commit"
CUDA = "sglang/kernels/jit/csrc/attention/gdn_tree"


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    assert entry.requires == ("gdn-path-verify",) and entry.status == "unmeasured" and entry.delta.vary == ()
    assert all(path.startswith((OURS, CUDA)) for path in entry.delta.paths), "nothing of the engine around them"
    assert server_words([variants], []) == ()
    assert server_words([variants], ["wy=cuda"]) == ("@env:SGLANG_GDN_WY=cuda",)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the entry reproduces."""
    return entry_tree(tmp_path_factory.mktemp("gdn-wy-verify"), "gdn-wy-verify")


def run_contracts(patched: Path, test: str) -> str:
    """What pytest says of the contracts whose names begin so, in the tree."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-k", test]
    argv += ["--rootdir", str(patched), str(ENTRY / "contracts")]
    return subprocess.run(argv, cwd=patched, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives(patched: Path) -> None:
    assert contract_fault(ENTRY, patched) is None

    # each of them can fail: another scale, another layer, the walk in its place, a later start, a changed copy
    rows, native = f"{OURS}/tree_rows.py", f"{OURS}/native.py"
    for path, old, new, test in (
        (rows, "scale = sizes.width**-0.5", "scale = sizes.width**-0.49", "test_outputs_are"),
        (rows, 'triton_path if self.wy == "off" else triton_wy', "triton_path", "test_outputs_are"),
        (native, "place * source.layer", "(place + 1) % 2 * source.layer", "test_the_read_launch"),
        (native, "shape, 1, stream)", "shape, 0, stream)", "test_the_read_launch"),
        (f"{OURS}/switch.py", 'word != "off" and tree_variant() == "off"', "False", "test_the_switch"),
        (f"{CUDA}/read.cuh", "#pragma once", "#pragma  once", "test_every_copy"),
    ):
        said = with_fault(patched, path, old, new, partial(run_contracts, patched, test))
        assert " failed" in said and " passed" not in said, old


@pytest.mark.slow
@needs_wheel
@needs_engine
@pytest.mark.parametrize(
    "checks", ["gdn_wy_engine_checks.py", "gdn_path_engine_checks.py", "gdn_commit_engine_checks.py"]
)
def test_in_the_real_engine(patched: Path, tmp_path: Path, checks: str) -> None:
    """All paths at once; and, without its switch, all that the entries below it promise."""
    checked(patched, HERE / checks, tmp_path)


@pytest.mark.slow
@needs_wheel
@needs_engine
def test_served_texts_are_stocks(tmp_path: Path) -> None:
    """A hybrid target with a DFLASH drafter in the real engine: tokens, steps, and log-probabilities up to last bits.

    Those say what states and outputs did: a planted fault moves them a hundred times further at least.
    """
    patched, models = entry_tree(tmp_path, "gdn-wy-verify"), tmp_path / "models"
    write_models(models)
    stubs = write_stubs(tmp_path / "stubs")
    for tree in (tmp_path / "stock", patched):
        allow_gdn_on_cpu(tree)
    switches = {"SGLANG_GDN_COMMIT": "triton", "SGLANG_GDN_TREE": "path", "SGLANG_GDN_WY": "triton"}
    expected, found = served(tmp_path / "stock", models, stubs), served(patched, models, stubs, **switches)
    told = [[{key: text[key] for key in ("ids", "steps")} for text in texts] for texts in (expected, found)]
    assert told[0] == told[1]
    replace(patched / OURS / "gdn_wy/triton_wy.py", "found = right - tl.dot", "found = right + tl.dot")
    wrong = served(patched, models, stubs, **switches)
    assert 0 < 100 * furthest(expected, found) < furthest(expected, wrong)


def furthest(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> float:
    """The largest difference of two servings' log-probabilities."""
    pairs = [pair for a, b in zip(one, two, strict=True) for pair in zip(a["logprobs"], b["logprobs"], strict=True)]
    return max(abs(x - y) for x, y in pairs)
