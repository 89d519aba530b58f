"""Acceptance lengths worked out by hand, and the converter."""

from __future__ import annotations

import numpy as np
import pytest

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.replay.lengths import Counts, by_name, convert, definitions, table

# request 0: steps of 3, 1, 5 tokens, the last cut to 2; request 1: one step of 4 tokens, not cut
COUNTS = Counts(np.array([3, 1]), np.array([9, 4]), np.array([3, 0]), np.array([5, 4]))
BY_HAND = {
    "pooled/cut/bonus": 10 / 4,
    "pooled/whole/bonus": 13 / 4,
    "pooled/left-out/bonus": 4 / 2,
    "per-request/cut/bonus": (6 / 3 + 4 / 1) / 2,
    "per-request/whole/bonus": (9 / 3 + 4 / 1) / 2,
    "per-request/left-out/bonus": 4 / 2,  # request 1 has no other step
    "token-weighted/cut/bonus": (6 * 2 + 4 * 4) / 10,
    "pooled/cut/bonus+first": 12 / 4,
    "per-request/cut/bonus+first": (7 / 3 + 5 / 1) / 2,
}


@pytest.mark.parametrize("name", BY_HAND)
def test_definitions_by_hand(name: str) -> None:
    assert by_name(name).measure(COUNTS) == pytest.approx(BY_HAND[name])
    if "+first" not in name:
        assert by_name(name.replace("bonus", "drafts")).measure(COUNTS) == pytest.approx(BY_HAND[name] - 1)


def test_every_definition_has_a_row_and_a_name_of_its_own() -> None:
    rows = table(COUNTS)
    assert len(rows) == len({row.name for row in rows}) == len(definitions()) == 21


def test_conversion() -> None:
    bonus, drafts = by_name("pooled/cut/bonus"), by_name("pooled/cut/drafts")
    assert convert(3.2, bonus, drafts) == pytest.approx(2.2)
    assert convert(2.2, drafts, bonus) == pytest.approx(3.2)
    for source in definitions():
        for target in definitions():
            found = convert(source.measure(COUNTS), source, target, COUNTS)
            assert found == pytest.approx(target.measure(COUNTS))
    with pytest.raises(UsageFault, match="cannot be converted"):
        convert(3.2, bonus, by_name("per-request/cut/bonus"))
    with pytest.raises(UsageFault, match="no acceptance length"):
        by_name("mean")
