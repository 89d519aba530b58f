"""What tokens cost. The figures stand in `prices.toml`, each with its source."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from specpilot_cli.agents.provider import Usage
from specpilot_cli.artifacts.base import Count, NonNegative, Record
from specpilot_cli.core.errors import UsageFault
from specpilot_cli.deployment.load import parse_toml

FILE = Path(__file__).with_name("prices.toml")
_SNAPSHOT = re.compile(r"(-|@)\d{8}")


class Price(Record):
    """USD per million tokens."""

    input: NonNegative
    cache_write: NonNegative
    """With the default life of five minutes."""
    cache_read: NonNegative
    output: NonNegative


class _Long(Price):
    over_tokens: Count


class _Row(Price):
    id: str
    source: str
    as_of: str
    long: _Long | None = None


class _File(Record):
    model: tuple[_Row, ...]


FREE = Price(input=0, cache_write=0, cache_read=0, output=0)


def own_price(price_in: float, price_out: float) -> Price:
    """A price from `--price-in` and `--price-out`. Cache writes cost 1.25 times the input, and reads as much as input:
    what a server charges for them is not known, and a budget should not be exceeded."""
    return Price(input=price_in, cache_write=1.25 * price_in, cache_read=price_in, output=price_out)


def price_of(model: str, usage: Usage, own: Price | None = None) -> Price | None:
    """The price that an answer of `model` with this usage has; None where none is known.

    A replayed answer is free. So is an external program's as far as we see: it pays on its own account.
    """
    if model.partition(":")[0] in ("replay", "command"):
        return FREE
    if own is not None:
        return own
    for row in _rows():
        if model.startswith(row.id) and (model == row.id or _SNAPSHOT.fullmatch(model[len(row.id) :])):
            long = row.long
            prompt = usage.input_tokens + usage.cache_write_tokens + usage.cache_read_tokens
            return long if long is not None and prompt > long.over_tokens else row
    return None


def cost_usd(model: str, usage: Usage, own: Price | None = None) -> float:
    """USD of one answer. Of one, not of a sum: some models cost more where a single prompt is long.

    Args:
        own: from `own_price`; wins over the file.
    Raises:
        UsageFault: no price is known for the model. Where no money limit is set, ask `price_of` first.
    """
    price = price_of(model, usage, own)
    if price is None:
        known = ", ".join(row.id for row in _rows())
        raise UsageFault(
            f"No price is known for the model '{model}', so money cannot be limited.",
            f"Known: {known}.",
            "Give --price-in and --price-out (USD per million tokens), or limit tokens instead.",
        )
    parts = (
        (usage.input_tokens, price.input),
        (usage.cache_write_tokens, price.cache_write),
        (usage.cache_read_tokens, price.cache_read),
        (usage.output_tokens, price.output),
    )
    return sum(tokens * each for tokens, each in parts) / 1e6


@cache
def _rows() -> tuple[_Row, ...]:
    return parse_toml(FILE, _File)[0].model
