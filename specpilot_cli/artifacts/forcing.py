"""`specpilot.forcing/1`: every output token against the stock target's own choice."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record, Sha256, TokenId
from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.verdict import Verdict


class Mismatch(Record):
    """An output token that is not the scorer's argmax."""

    request_id: str
    position: Count
    """Index in the output."""
    token: TokenId
    argmax: TokenId
    margin_nats: NonNegative
    """log p(argmax) - log p(token) at the scorer."""
    top_logit: float
    """The scorer's largest logit there: its binade sets the rounding step."""
    large: bool
    """margin >= 2 δ."""
    explained: bool
    """Both logits fall within one rounding step of their binade."""


class ForcedSide(Record):
    """One system's outputs, forced."""

    name: Literal["candidate", "stock"]
    tokens: Count
    requests: Count
    mismatches: Count
    ties: Count
    """Exact ties resolved to another id: not mismatches."""
    rate: Fraction
    large_events: Count
    events: tuple[Mismatch, ...]
    """Every mismatch."""


class Band(Record):
    """Mismatches whose top logit lies in [low, high)."""

    low: NonNegative
    high: Positive
    bf16_step: Positive
    tokens: Count
    mismatches: Count
    max_margin_nats: NonNegative


class RateRule(Record):
    """Reject when the rate is more than 0.5 points above stock's at 95 % confidence."""

    difference: float
    low: float
    high: float
    """One-sided 95 % bounds of the difference."""
    limit: Fraction = 0.005
    method: str
    outcome: Literal["pass", "reject", "undecided"]


class EventRule(Record):
    """Reject when large-margin events are more frequent than stock's (exact test)."""

    candidate_events: Count
    stock_events: Count
    p_value: Fraction
    method: str
    outcome: Literal["pass", "reject"]


class DetectionPower(Record):
    """What this many tokens would have caught with probability 0.9."""

    wrong_token_rate: Fraction
    """Smallest rate of wrong tokens."""
    bias_every_k: dict[str, float | None]
    """k -> smallest logit bias on every k-th id that would have been caught; None: none up to the tested maximum."""
    method: str


class ForcingBody(Record):
    """Mismatch rates, margins, both rules and the detection power."""

    scorer: ServerRecord
    fp32_lm_head: bool
    kv_cache_dtype: str
    delta_nats: Positive
    delta_source: str
    outputs_from: Sha256
    """The pair-run whose outputs were forced."""
    candidate: ForcedSide | None = None
    stock: ForcedSide | None = None
    bands: tuple[Band, ...] = ()
    rate_rule: RateRule | None = None
    event_rule: EventRule | None = None
    power: DetectionPower | None = None
    verdict: Verdict | None = None
    reason: str = ""


class ForcingArtifact(Envelope):
    """Every output token against the stock target."""

    schema_: Literal["specpilot.forcing/1"] = Field(default="specpilot.forcing/1", alias="schema")
    body: ForcingBody
