"""Prices: the file, its rules, and what has no price."""

from __future__ import annotations

import pytest

from specpilot_cli.agents import prices
from specpilot_cli.agents.prices import FREE, Price, cost_usd, own_price, price_of
from specpilot_cli.agents.provider import Usage
from specpilot_cli.agents.providers.anthropic import DEFAULT_MODEL
from specpilot_cli.core.errors import UsageFault

USAGE = Usage(input_tokens=1000, cache_write_tokens=2000, cache_read_tokens=30_000, output_tokens=500)


def test_an_answer_is_the_sum_of_its_four_parts() -> None:
    expected = (1000 * 4 + 2000 * 5 + 30_000 * 0.2 + 500 * 20) / 1e6
    assert cost_usd("claude-opus-5-5", USAGE) == pytest.approx(expected, rel=1e-12)
    assert cost_usd("claude-opus-5-5", Usage()) == 0


def test_the_default_model_has_a_price() -> None:
    assert price_of(DEFAULT_MODEL, Usage()) is not None


def test_a_long_prompt_may_cost_more() -> None:
    short, long = Usage(cache_read_tokens=100_000, output_tokens=10), Usage(cache_read_tokens=100_001, output_tokens=10)
    assert cost_usd("claude-haiku-5-5", short) == pytest.approx((100_000 * 0.01 + 10 * 0.5) / 1e6, rel=1e-12)
    assert cost_usd("claude-haiku-5-5", long) == pytest.approx((100_001 * 0.05 + 10 * 2.5) / 1e6, rel=1e-12)


@pytest.mark.parametrize("model", ["claude-haiku-4-5-20251001", "claude-haiku-4-5@20251001", "claude-haiku-4-5"])
def test_snapshots_cost_what_their_model_costs(model: str) -> None:
    assert cost_usd(model, Usage(input_tokens=10**6)) == 1.0


@pytest.mark.parametrize("model", ["claude-opus-5-9", "claude-opus-50", "claude-opus-5-fast", "gpt", ""])
def test_another_model_has_no_price(model: str) -> None:
    assert price_of(model, USAGE) is None
    with pytest.raises(UsageFault) as caught:
        cost_usd(model, USAGE)
    assert "--price-in and --price-out" in caught.value.remedy


def test_own_prices_win() -> None:
    own = own_price(2.0, 8.0)
    assert own == Price(input=2.0, cache_write=2.5, cache_read=2.0, output=8.0)
    expected = (1000 * 2 + 2000 * 2.5 + 30_000 * 2 + 500 * 8) / 1e6
    for model in ("claude-opus-5-5", "something-local"):
        assert cost_usd(model, USAGE, own) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("model", ["replay:claude-opus-5-5", "replay:unknown", "replay", "command:my-agent", "command"])
def test_what_we_do_not_pay_is_free(model: str) -> None:
    assert price_of(model, USAGE, own_price(1, 1)) == FREE
    assert cost_usd(model, USAGE) == 0


def test_every_row_names_its_source_and_its_order_is_plausible() -> None:
    rows = prices._rows()
    assert len({row.id for row in rows}) == len(rows) >= 10
    for row in rows:
        assert row.source.startswith("https://") and row.as_of >= "2026-01"
        assert row.cache_read < row.input < row.cache_write < row.output
        assert row.cache_write == pytest.approx(1.25 * row.input)
