"""One output token against the scorer: match, exact tie, or mismatch with its margin; and what rounding explains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.artifacts.forcing import Mismatch
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.base import TokenScore

CONTEXT_TOKENS = 8
MAX_MARGIN_NATS = 1e6
"""Stands for a token of probability 0, so that an artifact holds no infinity."""
MANTISSA_BITS = {"float32": 23, "bfloat16": 7, "float16": 10}


@dataclass(frozen=True)
class Rule:
    """What makes a mismatch large, and what explains it."""

    large_nats: float
    """2 δ."""
    compute_dtype: str


def binade(value: float) -> int | None:
    """Exponent e with 2^e <= |value| < 2^(e+1); None for 0."""
    return None if value == 0 else math.frexp(abs(value))[1] - 1


def rounding_step(dtype: str, value: float) -> float:
    """Distance of neighbouring `dtype` numbers in `value`'s binade: 2^(e - mantissa bits).

    bfloat16: 0.125 in [16, 32), 0.25 in [32, 64). An unknown dtype has step 0: it explains nothing.
    """
    exponent, bits = binade(value), MANTISSA_BITS.get(dtype)
    return 0.0 if exponent is None or bits is None else math.ldexp(1.0, exponent - bits)


def margin_nats(score: TokenScore) -> float:
    """log p(argmax) - log p(token), at least 0.

    Raises:
        ExternalFailed: NaN, or the token is more probable than the argmax: the scorer contradicts itself.
    """
    margin = score.argmax_logprob - score.token_logprob
    if math.isnan(margin) or margin < 0 or math.isinf(score.argmax_logprob):
        raise ExternalFailed(
            "The scorer's log probabilities contradict its argmax.",
            f"log p({score.argmax}) = {score.argmax_logprob}, log p({score.token}) = {score.token_logprob}.",
        )
    return min(margin, MAX_MARGIN_NATS)


def is_tie(score: TokenScore) -> bool:
    """Another id with exactly the argmax's score: either choice is an argmax."""
    return score.token != score.argmax and margin_nats(score) == 0.0


def judge(scores: Sequence[TokenScore], prompt: Sequence[int], rule: Rule) -> tuple[list[Mismatch], int]:
    """Mismatches and the number of exact ties of one output, token by token."""
    mismatches, ties = [], 0
    context = list(prompt)
    for position, score in enumerate(scores):
        if score.token != score.argmax:
            if is_tie(score):
                ties += 1
            else:
                mismatches.append(_mismatch(position, score, context, rule))
        context.append(score.token)
    return mismatches, ties


def explained(margin: float, top_logit: float | None, dtype: str) -> bool:
    """Whether one rounding step of the top logit's binade covers the margin (a difference of logits)."""
    return top_logit is not None and margin <= rounding_step(dtype, top_logit)


def _mismatch(position: int, score: TokenScore, context: Sequence[int], rule: Rule) -> Mismatch:
    margin = margin_nats(score)
    return Mismatch(
        position=position,
        token=score.token,
        argmax=score.argmax,
        margin_nats=margin,
        top_logit=score.top_logit,
        large=margin >= rule.large_nats,
        explained=explained(margin, score.top_logit, rule.compute_dtype),
        context=tuple(context[-CONTEXT_TOKENS:]),
    )
