"""Force every output of a pair-run, or measure δ from one of stock against AR."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from specpilot_cli.artifacts.forcing import Divergence, ForcedRequest, ForcingBody, PhaseZero
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core import console
from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.engine.base import TokenScore
from specpilot_cli.forcing import bias
from specpilot_cli.forcing.autoregressive import ArOutputs, speculative_arm
from specpilot_cli.forcing.delta import Delta, first_divergence, rounded_delta
from specpilot_cli.forcing.margin import Rule, binade, judge
from specpilot_cli.forcing.outputs import ToForce, by_request, outputs_to_force
from specpilot_cli.forcing.scorer import Scorer
from specpilot_cli.forcing.thresholds import Thresholds
from specpilot_cli.forcing.verdict import judged

Checkpoint = Callable[[ForcingBody], None]
CHECKPOINT_S = 1.0


def start_body(scorer: Scorer, delta: Delta, outputs_from: str) -> ForcingBody:
    """The artifact's body before anything is forced."""
    return ForcingBody(
        scorer=scorer.record,
        fp32_lm_head=True,
        compute_dtype=scorer.compute_dtype,
        kv_cache_dtype=scorer.kv_cache_dtype,
        delta_nats=delta.nats,
        delta_source=delta.source,
        outputs_from=outputs_from,
    )


def resumed(fresh: ForcingBody, old: ForcingBody) -> ForcingBody:
    """`fresh` with the requests that `old` has already forced.

    Raises:
        InputUnusable: `old` forced other outputs, with another δ or another scorer.
    """
    for name in ("outputs_from", "delta_nats", "compute_dtype", "kv_cache_dtype"):
        if getattr(old, name) != getattr(fresh, name):
            raise InputUnusable(
                f"--resume: {name} differs.", f"It was {getattr(old, name)} and is {getattr(fresh, name)}."
            )
    if old.scorer.tree != fresh.scorer.tree:
        raise InputUnusable("--resume: the scorer is another tree.", f"{old.scorer.tree} is not {fresh.scorer.tree}.")
    return fresh.model_copy(update={"requests": old.requests, "bias_gaps": old.bias_gaps})


def _binades(scores: Sequence[TokenScore]) -> dict[str, int]:
    found = Counter(
        str(exponent)
        for score in scores
        if score.top_logit is not None and (exponent := binade(score.top_logit)) is not None
    )
    return dict(sorted(found.items()))


def force_one(scorer: Scorer, item: ToForce, rule: Rule) -> tuple[ForcedRequest, list[TokenScore]]:
    """Score one output. The second value feeds the bias histogram."""
    scores = scorer.score(item.input_ids, item.output_ids)
    mismatches, ties = judge(scores, item.input_ids, rule)
    short = len(item.output_ids) < item.other_length
    forced = ForcedRequest(
        request_id=item.request_id,
        arms=item.arms,
        output_sha256=item.sha256,
        tokens=len(scores),
        shared_tokens=item.shared_tokens,
        ties=ties,
        tokens_by_binade=_binades(scores),
        ended_early=short and not scorer.stops_after(item.input_ids, item.output_ids),
        mismatches=tuple(mismatches),
    )
    return forced, scores


def _with_gaps(body: ForcingBody, scores: Sequence[TokenScore]) -> dict[str, tuple[int, ...]]:
    if not any(score.top for score in scores):
        return dict(body.bias_gaps)
    return {
        str(k): bias.add(body.bias_gaps.get(str(k), ()), bias.histogram(scores, k, body.compute_dtype))
        for k in bias.EVERY
    }


def _remaining(body: ForcingBody, wanted: Sequence[ToForce]) -> list[ToForce]:
    done = {(forced.request_id, forced.arms, forced.output_sha256) for forced in body.requests}
    foreign = done - {(item.request_id, item.arms, item.sha256) for item in wanted}
    if foreign:
        raise InputUnusable(f"--resume: request {min(foreign)[0]} was forced from another output.")
    return [item for item in wanted if (item.request_id, item.arms, item.sha256) not in done]


def force(
    scorer: Scorer, pair: PairRunBody, body: ForcingBody, thresholds: Thresholds, checkpoint: Checkpoint
) -> ForcingBody:
    """Force what `body` does not have yet, and judge.

    Args:
        checkpoint: called with the body so far, at least once a second while outputs are scored.
    Raises:
        ExternalFailed: the scorer failed; `checkpoint` then holds the verdict INFRA and everything forced before.
    """
    rule = Rule(thresholds.event_margin_deltas * body.delta_nats, body.compute_dtype)
    wanted = outputs_to_force(pair)
    written = time.monotonic()
    for item in _remaining(body, wanted):
        try:
            forced, scores = force_one(scorer, item, rule)
        except ExternalFailed as error:
            checkpoint(body.model_copy(update={"verdict": Verdict.INFRA, "reason": error.fact}))
            raise
        gaps = _with_gaps(body, scores) if "stock" in item.arms else body.bias_gaps
        body = body.model_copy(update={"requests": (*body.requests, forced), "bias_gaps": gaps})
        if time.monotonic() - written >= CHECKPOINT_S:
            checkpoint(body)
            written = time.monotonic()
            console.say(f"forced {len(body.requests)} of {len(wanted)} outputs")
    return judged(body, pair, thresholds)


def _divergence(scorer: Scorer, request_id: str, prefix: tuple[int, ...], stock: int, ar: int, at: int) -> Divergence:
    first, second = scorer.score(prefix, (stock,))[0], scorer.score(prefix, (ar,))[0]
    return Divergence(
        request_id=request_id,
        position=at,
        stock_token=stock,
        ar_token=ar,
        margin_nats=abs(first.token_logprob - second.token_logprob),
        top_logit=first.top_logit,
    )


def phase_zero(
    scorer: Scorer, pair: PairRunBody, body: ForcingBody, thresholds: Thresholds, plain: ArOutputs
) -> ForcingBody:
    """δ from the first position of every request at which stock's output leaves AR's.

    Args:
        plain: request id -> AR's output (`autoregressive.ar_outputs`).
    """
    arm, found = speculative_arm(pair), []
    for name, arms in by_request(pair).items():
        for stock in arms[arm].values():
            at = first_divergence(stock.output_ids, plain[name], name)
            if at is not None:
                prefix = (*stock.input_ids, *stock.output_ids[:at])
                found.append(_divergence(scorer, name, prefix, stock.output_ids[at], plain[name][at], at))
    largest = max((item.margin_nats for item in found), default=0.0)
    delta = rounded_delta(largest, thresholds.delta_grid_nats)
    phase0 = PhaseZero(requests=len(pair.requests.ids), divergences=tuple(found), largest_nats=largest)
    source = f"largest of {len(found)} first divergences of stock from AR, over {len(pair.requests.ids)} requests"
    return body.model_copy(update={"phase0": phase0, "delta_nats": delta, "delta_source": source})
