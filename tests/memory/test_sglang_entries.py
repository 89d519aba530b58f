"""Every entry for SGLang gives the tree that it records from stock, alone; contracts that need no engine hold there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.room import open_room

ROOM = share_dir("memory") / "sglang-0.5.20"
ENTRIES = sorted(path.parent.name for path in ROOM.glob("*/entry.toml"))
WHEEL = os.environ.get("SGLANG_TEST_WHEEL")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("SGLANG_TEST_PYTHON" not in os.environ, reason="for a place that has SGLang or may download it"),
]


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stock tree, from a wheel that is there or that pip downloads."""
    folder = tmp_path_factory.mktemp("entries") / "stock"
    return init_sglang(folder, wheel=Path(WHEEL) if WHEEL else None)[0].path


def test_there_are_entries() -> None:
    assert {"w12-linear", "record-lattice"} <= set(ENTRIES)


@pytest.mark.parametrize("name", ENTRIES)
def test_it_reproduces(stock: Path, name: str) -> None:
    made = plan(open_room(None), (name,), stock)
    assert made.reproduces, made.first_difference


def test_the_narrow_tile_and_its_contracts(stock: Path, tmp_path: Path) -> None:
    made, patched = plan(open_room(None), ("gdn-verify-columns",), stock), tmp_path / "patched"
    materialise(made, patched)
    entry = ROOM / "gdn-verify-columns"
    assert contract_fault(entry, patched) is None
    file = patched / "sglang/kernels/ops/attention/fla/fused_sigmoid_gating_recurrent.py"
    file.write_text(file.read_text().replace("and not is_kda", ""))
    assert "test_which_steps_get_the_narrow_tile" in str(contract_fault(entry, patched))
