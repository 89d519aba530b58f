"""Which batches and which captured sizes are trees', which chains'."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tree_modules import tree_modules

SIZES = [1, 2, 4, 8]


@pytest.fixture(scope="module")
def regime() -> Any:
    return tree_modules(Path.cwd()).regime


def served(regime: Any, most: int | None, devices: list[str]) -> list[tuple[bool, bool]]:
    made = regime.Regime(most, devices)
    return [made.serves(SIZES, size) for size in SIZES]


def test_a_captured_size_serves_what_is_padded_to_it(regime: Any) -> None:
    trees, chains, both = (True, False), (False, True), (True, True)
    assert served(regime, 4, []) == [trees, trees, trees, chains]
    assert served(regime, 3, []) == [trees, trees, both, chains], "3 and 4 requests take one graph"
    assert served(regime, 6, []) == [trees, trees, trees, both]
    assert served(regime, 0, []) == [trees] * 4


def test_the_region_decides_where_nothing_is_said(regime: Any) -> None:
    low, high = regime.region.RANGES["requests"]
    assert (low, set(regime.region.RANGES)) == (1, {"requests"}), "other sides would have to be given"
    (device,) = regime.region.NAMES["devices"]
    inside = regime.Regime(None, [device])
    assert [inside.inside(count) for count in (1, high, high + 1)] == [True, True, False]
    assert not regime.Regime(None, ["cpu"]).inside(1)


@pytest.mark.parametrize("most", [2, None])
def test_it_is_said_once(regime: Any, most: int | None, caplog: pytest.LogCaptureFixture) -> None:
    made = regime.Regime(most, [regime.region.NAMES["devices"][0]])
    with caplog.at_level(logging.WARNING):
        assert made.enabled(2) and not caplog.records
        assert [made.enabled(99), made.enabled(100), made.enabled(1)] == [False, False, True]
    assert len(caplog.records) == 1 and "tree-core is off" in caplog.text
