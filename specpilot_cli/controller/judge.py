"""From samples to summary, gain, verdict and reason. Pure: the artifact's samples give the same body again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specpilot_cli.artifacts.pair_run import Arm, ArmSummary, AtConcurrency, Estimate, PairRunBody, Sample
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller import checks, compare, contention
from specpilot_cli.controller.fresh import fresh_problems
from specpilot_cli.controller.measure import ARMS, MACHINE
from specpilot_cli.controller.noise import noise_of
from specpilot_cli.controller.pairs import Ratios, log_ratios
from specpilot_cli.controller.power import pairs_needed
from specpilot_cli.controller.promote import decide
from specpilot_cli.controller.stats import MIN_BLOCK_PAIRS, MIN_UNITS, device_ratio, estimate
from specpilot_cli.forcing.thresholds import Thresholds, load_thresholds


def summarise(samples: Sequence[Sample], arm: Arm) -> ArmSummary | None:
    """τ = 1 + correct drafts / verify steps, tokens per second of engine time, and time per token of a request."""
    own = [s for s in samples if s.arm == arm]
    tokens, steps = sum(s.completion_tokens for s in own), sum(s.verify_steps for s in own)
    if not tokens:
        return None
    batch_walls = {(s.repeat, s.block, s.concurrency, s.batch): s.wall_s for s in own}
    return ArmSummary(
        tau=1 + sum(s.correct_drafts for s in own) / steps if steps else None,
        output_tokens_per_s=tokens / sum(batch_walls.values()),
        tpot_ms=1000 * sum(s.wall_s for s in own) / tokens,
    )


def summaries(samples: Sequence[Sample]) -> dict[Arm, ArmSummary]:
    """Both arms, those that have run."""
    arms: tuple[Arm, ...] = ("stock", "candidate")
    return {arm: found for arm in arms if (found := summarise(samples, arm)) is not None}


def not_comparable(body: PairRunBody, found_by_run: Sequence[str]) -> list[str]:
    """Everything in which the arms differ beyond the thing tested."""
    if body.purpose == "autoregressive":
        return list(found_by_run)
    shortened = checks.shortened_requests(body.outputs)
    found = compare.configuration_problems(body.stock, body.candidate, body.vary)
    found += dict.fromkeys(found_by_run)
    if shortened:
        found.append(f"the candidate ends {len(shortened)} outputs earlier than stock: {', '.join(shortened[:3])}")
    if body.deployment.gpu == "cpu":
        found += contention.unequal_means(body.samples) + contention.idle_work(body.samples)
    return found + checks.reuse_problems(body.samples) + fresh_problems(body.samples, body.fresh_samples)


def judge(body: PairRunBody, thresholds: Thresholds | None = None) -> PairRunBody:
    """The body with everything that follows from its samples.

    INFRA comes first (a disturbed machine says nothing about the arms), then NOT_COMPARABLE, then the statistics.

    `body.problems` holds what the run itself found out, each with its prefix (`measure.ARMS`, `measure.MACHINE`).
    """
    ratios = log_ratios(body.samples)
    gain = _estimate(body, ratios)
    changed = len(checks.changed_requests(body.samples))
    differences = compare.differences(body.stock.info, body.candidate.info)
    update: dict[str, Any] = {
        "summary": summaries(body.samples),
        "gain": gain,
        "by_concurrency": _by_concurrency(body, ratios),
        "device_ratio": device_ratio(ratios) if body.design.placement == "swap" else None,
        "outputs_changed": changed,
        "differences": tuple(differences.values()),
    }
    if body.purpose == "noise":
        update["noise"] = noise_of(gain) if gain else None
    body = body.model_copy(update=update)
    machine = [*_found(body, MACHINE), *contention.findings(body.samples)]
    arms = not_comparable(body, _found(body, ARMS))
    if machine or arms:
        verdict = Verdict.INFRA if machine else Verdict.NOT_COMPARABLE
        problems = (*(MACHINE + text for text in machine), *(ARMS + text for text in arms))
        return _with(body, verdict, "; ".join((machine or arms)[:3]), problems=problems)
    if body.purpose == "autoregressive":
        return _with(body, None, f"AR gave another output than stock on {changed} requests")
    return _noise_verdict(body) if body.purpose == "noise" else _gain_verdict(body, ratios, thresholds)


def _estimate(body: PairRunBody, ratios: Sequence[Ratios]) -> Estimate | None:
    return estimate(ratios, fresh_servers=body.design.placement != "resident", seed=body.design.seed)


def _by_concurrency(body: PairRunBody, ratios: Sequence[Ratios]) -> tuple[AtConcurrency, ...]:
    sizes = dict.fromkeys(cell.cell[1] for cell in ratios)
    found = {size: _estimate(body, [r for r in ratios if r.cell[1] == size]) for size in sizes if len(sizes) > 1}
    return tuple(AtConcurrency(concurrency=size, gain=gain) for size, gain in sorted(found.items()) if gain)


def _found(body: PairRunBody, prefix: str) -> list[str]:
    return list(dict.fromkeys(text.removeprefix(prefix) for text in body.problems if text.startswith(prefix)))


def _with(body: PairRunBody, verdict: Verdict | None, reason: str, **more: Any) -> PairRunBody:
    return body.model_copy(update={"verdict": verdict, "reason": reason, **more})


def _noise_verdict(body: PairRunBody) -> PairRunBody:
    if body.noise is None:
        return _with(body, Verdict.UNDERPOWERED, _too_few(body))
    unstable = f"; stock's own outputs changed on {body.outputs_changed} requests" if body.outputs_changed else ""
    return _with(body, None, f"stock against stock differs by up to {body.noise:.2%}{unstable}")


def _gain_verdict(body: PairRunBody, ratios: list[Ratios], thresholds: Thresholds | None) -> PairRunBody:
    assert body.noise is not None, "a gain run starts with the noise of its design"
    least = (thresholds or load_thresholds()).bar(body.noise, outputs_changed=body.outputs_changed > 0)
    verdict = decide(body.gain, least)
    if body.gain is None:
        return _with(body, verdict, _too_few(body), bar=least)
    needed = pairs_needed(ratios, body.gain, least) if verdict is Verdict.UNDERPOWERED else None
    return _with(body, verdict, _reason(verdict, body.gain, least, needed), bar=least, pairs_needed=needed)


def _too_few(body: PairRunBody) -> str:
    text = f"no interval with fewer than {MIN_UNITS} requests a benchmark"
    return text + (f" or {MIN_BLOCK_PAIRS} pairs of blocks" if body.design.placement != "resident" else "")


def _reason(verdict: Verdict, gain: Estimate, bar: float, needed: int | None) -> str:
    over = f"{1 + bar:.4f}"
    if verdict is Verdict.PROMOTED:
        return f"lower bound {gain.low:.4f} is above {over}"
    if verdict is Verdict.NO_EFFECT:
        return f"upper bound {gain.high:.4f} does not reach over {over}"
    more = "the gain lies on the bar" if needed is None else f"about {needed} more pairs would settle it"
    return f"the interval {gain.low:.4f} to {gain.high:.4f} contains {over}; {more}"
