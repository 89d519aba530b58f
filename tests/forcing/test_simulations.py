"""The paper's rates and the rate rule's error rates (the long version: `python -m specpilot_cli.forcing.simulate`)."""

from __future__ import annotations

import numpy as np
import pytest

from specpilot_cli.forcing.simulate import ACCURACY, PAPER, Case, accuracy_change, outcomes
from specpilot_cli.forcing.thresholds import load_thresholds

T = load_thresholds()


@pytest.mark.parametrize("name", PAPER)
def test_papers_rates_are_told_apart(name: str) -> None:
    found = outcomes(PAPER[name], T, repeats=100, seed=7)
    assert found == {"pass" if name.startswith("lossless") else "reject": 100}


def test_task_accuracy_does_not_see_the_fault() -> None:
    """-1.6 points [-3.6, +0.3] in the paper. 58 lost and 42 won of 1,000 give it back."""
    source = np.random.default_rng(11)
    drawn = np.asarray([accuracy_change(*ACCURACY, source) for _ in range(400)])
    change, low, high = drawn.mean(axis=0)
    assert change == pytest.approx(-1.6, abs=0.2)  # standard error 1.0 / sqrt(400) = 0.05
    assert low == pytest.approx(-3.6, abs=0.3) and high == pytest.approx(0.3, abs=0.3)
    covers = np.mean((drawn[:, 1] <= 0) & (drawn[:, 2] >= 0))
    assert covers > 0.5


@pytest.mark.parametrize(
    "case",
    [
        Case(24, 96, 0.0072, 0.005),
        Case(48, 96, 0.0002, 0.005, share=0.25, spread=1.0),
        Case(200, 2048, 0.0002, 0.005, share=0.1, spread=2.0),
        Case(200, 2048, 0.0072, 0.005, share=0.25, spread=1.0),
    ],
)
def test_rate_rule_errs_in_five_percent_at_the_limit(case: Case) -> None:
    """400 experiments: 5 % + 3 standard errors = 8.3 %. A token-level interval fails here with up to 40 %."""
    found = outcomes(case, T, repeats=400, seed=13)
    assert found["pass"] <= 33 and found["reject"] <= 33
