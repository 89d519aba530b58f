"""`specpilot.forcing/1`: every output token against the stock target's own choice."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record, Sha256, TokenId
from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import Arm
from specpilot_cli.artifacts.verdict import Verdict

Outcome = Literal["pass", "reject", "undecided"]
Difference = Annotated[float, Field(ge=-1, le=1)]


class Mismatch(Record):
    """An output token that is not the scorer's argmax."""

    position: Count
    """Index in the output."""
    token: TokenId
    argmax: TokenId
    margin_nats: NonNegative
    """log p(argmax) - log p(token) at the scorer (the difference of their logits)."""
    top_logit: float | None
    """The scorer's largest logit there: its binade sets the rounding step. None where the engine gives no logits."""
    large: bool
    """margin >= 2 δ."""
    explained: bool
    """Both logits lie within one rounding step of their binade, in the scorer's compute dtype."""
    context: tuple[TokenId, ...]
    """The tokens just before it (at most 8, prompt included), for reading."""


class ForcedRequest(Record):
    """One output, forced. Outputs that both arms share are forced once."""

    request_id: str
    arms: Annotated[tuple[Arm, ...], Field(min_length=1, max_length=2)]
    output_sha256: Sha256
    """As in `Sample.output_sha256`."""
    tokens: Count
    shared_tokens: Count
    """Leading tokens that the other arm gave too (all of them where both arms gave this output)."""
    ties: Count
    """Exact ties resolved to another id: not mismatches."""
    tokens_by_binade: dict[str, Count]
    """Exponent e of the top logit's binade [2^e, 2^(e+1)) -> tokens; empty without logits."""
    ended_early: bool
    """Shorter than the other arm's output although the scorer does not stop there."""
    mismatches: tuple[Mismatch, ...]


class ForcedSide(Record):
    """One arm, summed over its requests."""

    requests: Count
    tokens: Count
    mismatches: Count
    ties: Count
    rate: Fraction
    """mismatches / tokens."""
    large_events: Count
    """Mismatches with margin >= 2 δ."""
    explained_events: Count
    """Those of them that a rounding step explains."""
    max_margin_nats: NonNegative
    ended_early: Count
    """Outputs that stop where neither the other arm nor the scorer does."""
    unforced_samples: Count
    """Timed outputs whose tokens the pair-run did not keep: nothing is known of them."""


class Band(Record):
    """Tokens of both arms whose top logit lies in the binade [low, high)."""

    low: NonNegative
    high: Positive
    bf16_step: Positive
    """Distance of neighbouring bfloat16 values in the band."""
    tokens: Count
    mismatches: Count
    max_margin_nats: NonNegative


class RateRule(Record):
    """Reject when the mismatch rate is above stock's by more than the limit."""

    difference: Difference
    """Candidate's rate - stock's, over the tokens that follow the arms' first difference, per token of all."""
    low: Difference
    high: Difference
    """One-sided bounds, each at `confidence`."""
    confidence: Fraction
    limit: Fraction
    design_effect: Positive
    """Variance of the rates over requests / variance if tokens were independent, never below 1."""
    method: str
    outcome: Outcome


class EventRule(Record):
    """Reject when unexplained large-margin events are more frequent than stock's (exact test)."""

    candidate_events: Count
    stock_events: Count
    """Unexplained large-margin events at or after the arms' first difference."""
    p_value: Fraction
    alpha: Fraction
    excess_high: Difference
    """Upper bound of the candidate's event rate - stock's; a pass needs it to be <= `limit`."""
    limit: Fraction
    method: str
    outcome: Outcome


class DetectionPower(Record):
    """What this many tokens would have rejected with probability `probability`."""

    probability: Fraction
    wrong_token_rate: Fraction | None
    """Smallest rate of wrong tokens with a large margin; None: not even every token wrong would do."""
    bias_every_k: dict[str, float | None]
    """k -> smallest logit bias (nats) on every id divisible by k; None: none up to the largest tested, or unknown."""
    affected_request_share: Fraction
    """Smallest share of affected requests that puts at least one of them into this set."""
    method: str


class Divergence(Record):
    """First position at which stock's output leaves AR's."""

    request_id: str
    position: Count
    stock_token: TokenId
    ar_token: TokenId
    margin_nats: NonNegative
    """|log p(stock's token) - log p(AR's token)| at the scorer."""
    top_logit: float | None


class PhaseZero(Record):
    """How far apart two near-tied tokens were where stock first left AR."""

    requests: Count
    divergences: tuple[Divergence, ...]
    largest_nats: NonNegative


class ForcingBody(Record):
    """Mismatch rates, margins, both rules and the detection power. Phase 0 has `phase0` and no verdict."""

    scorer: ServerRecord
    fp32_lm_head: bool
    compute_dtype: str
    kv_cache_dtype: str
    delta_nats: Positive
    delta_source: str
    outputs_from: Sha256
    """The pair-run whose outputs were forced."""
    phase0: PhaseZero | None = None
    requests: tuple[ForcedRequest, ...] = ()
    bias_gaps: dict[str, tuple[Count, ...]] = Field(default_factory=dict)
    """k -> histogram (bins of 1/8 nat from 0) of log p(argmax) - log p(best id divisible by k), over stock's tokens."""
    sides: dict[Arm, ForcedSide] = Field(default_factory=dict)
    bands: tuple[Band, ...] = ()
    rate_rule: RateRule | None = None
    event_rule: EventRule | None = None
    power: DetectionPower | None = None
    tokens_needed: Count | None = None
    """Output tokens a side that UNDERPOWERED still needs, if the observed rates hold; None: cannot be said."""
    verdict: Verdict | None = None
    reason: str = ""


class ForcingArtifact(Envelope):
    """Every output token against the stock target."""

    schema_: Literal["specpilot.forcing/1"] = Field(default="specpilot.forcing/1", alias="schema")
    body: ForcingBody
