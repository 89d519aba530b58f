"""Equal shares and per-request block lengths."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.replay import block_length
from specpilot_cli.replay.block_length import BlockRule
from specpilot_cli.replay.shared_budget import batches, equal_shares

RULE = BlockRule()
SIGNALS = st.lists(st.tuples(st.floats(0, 20, width=32), st.floats(0, 20, width=32)), min_size=1, max_size=30)


@given(st.integers(1, 40), st.integers(0, 300))
def test_equal_shares_use_the_budget_and_differ_by_one(batch: int, budget: int) -> None:
    found = equal_shares(batch, budget)
    assert found.sum() == budget and found.max() - found.min() <= 1


def test_batches_use_every_step_once() -> None:
    found = batches(50, 8, seed=1)
    assert found.shape == (6, 8) and len(np.unique(found)) == 48


@given(SIGNALS)
def test_block_lengths_equal_their_reference(signals: list[tuple[float, float]]) -> None:
    mean, sure = (np.array(x, dtype=np.float32) for x in zip(*signals, strict=True))
    found = block_length.next_length(mean, sure, RULE)
    assert found.tolist() == [block_length.reference(float(m), float(s), RULE) for m, s in signals]


@given(SIGNALS, st.integers(0, 480))
def test_blocks_fit_into_the_rows(signals: list[tuple[float, float]], rows: int) -> None:
    mean, sure = (np.array(x, dtype=np.float32) for x in zip(*signals, strict=True))
    wanted = block_length.next_length(mean, sure, RULE)
    fitted = block_length.within(wanted, rows, RULE)
    assert (fitted <= wanted).all() and set(fitted.tolist()) <= set(RULE.lengths)
    assert fitted.sum() <= max(rows, 8 * len(signals))
    if wanted.sum() <= rows:
        assert fitted.tolist() == wanted.tolist()


def test_the_recent_mean_forgets() -> None:
    mean = np.array([8.0], dtype=np.float32)
    for _ in range(30):
        mean = block_length.recent(mean, np.array([1], dtype=np.int32), RULE)
    assert abs(float(mean[0]) - 1) < 0.01


def test_confidence_is_the_expected_number_of_drafts() -> None:
    scores = np.log(np.array([[0.5, 0.25], [1.0, 1.0]], dtype=np.float32))
    assert block_length.confidence(scores).tolist() == [0.75, 2.0]
