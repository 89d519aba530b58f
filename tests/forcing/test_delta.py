"""δ: the rounding rule, first divergences, where δ comes from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.forcing.delta import first_divergence, rounded_delta


@pytest.mark.parametrize(
    ("largest", "delta"), [(0.232, 0.25), (0.25, 0.25), (0.2500001, 0.375), (0.0, 0.125), (1e-9, 0.125), (3.0, 3.0)]
)
def test_rounded_up_to_eighths(largest: float, delta: float) -> None:
    assert rounded_delta(largest, 0.125) == delta


@given(st.floats(0, 1e3))
def test_delta_is_the_smallest_multiple_that_covers(largest: float) -> None:
    delta = rounded_delta(largest, 0.125)
    assert (delta / 0.125).is_integer() and delta >= largest
    assert delta == 0.125 or delta - 0.125 < largest


def test_first_divergence() -> None:
    assert first_divergence((1, 2, 3), (1, 2, 3), "a") is None
    assert first_divergence((1, 2, 3), (1, 9, 3, 4), "a") == 1
    with pytest.raises(InputUnusable, match="different lengths"):
        first_divergence((1, 2), (1, 2, 3), "a")
