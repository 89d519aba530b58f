"""Plausibility of what came back, and the comparison of outputs. Engines may lie; these are the lies that show."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from specpilot_cli.artifacts.pair_run import Arm, Output, Sample
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.engine.base import Generation

CLOCK_TOLERANCE_S = 0.005
REUSE_LIMIT = 0.02
"""Speed-up of repeated over first requests, beyond the other arm's, that is taken for reuse of results."""
REUSE_SIGNIFICANCE = 0.001


def output_digest(ids: Sequence[int]) -> str:
    """sha256 of the ids in decimal, separated by commas."""
    return sha256_bytes(",".join(map(str, ids)).encode())


def draft_tokens(info: Mapping[str, Any]) -> int | None:
    """Draft positions m of the resolved configuration; None where it does not say."""
    value = info.get("speculative_num_draft_tokens")
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None


def generation_problems(answer: Generation, limit: int, info: Mapping[str, Any]) -> list[str]:
    """What in an engine's answer contradicts itself.

    The counters only serve τ, but an engine whose counters are wrong is not the engine it claims to be.
    """
    count, found = len(answer.output_ids), []
    claimed = answer.meta.get("completion_tokens", count)
    if claimed != count:
        found.append(f"{claimed} completion tokens claimed, {count} sent")
    if count == 0 or count > limit:
        found.append(f"{count} tokens sent, 1 to {limit} asked for")
    elif count < limit and answer.finish_reason == "length":
        found.append(f"{count} of {limit} tokens sent with finish reason 'length'")
    if answer.meta.get("cached_tokens", 0):
        found.append(f"{answer.meta['cached_tokens']} prompt tokens came from a cache that was flushed")
    return found + _tau_problems(answer, draft_tokens(info))


def _tau_problems(answer: Generation, drafts: int | None) -> list[str]:
    steps, correct = answer.verify_steps, answer.correct_drafts
    if steps == 0:
        return [f"{correct} correct drafts in no verify step"] if correct else []
    if correct < 0 or steps < 0:
        return ["negative counters"]
    if drafts is not None and correct > drafts * steps:
        return [f"accept length {1 + correct / steps:.2f} with {drafts} draft tokens"]
    # every step yields its correct drafts and a bonus token; SGLang counts the last step whole where the output is cut
    if correct + steps > len(answer.output_ids) + 1 + (drafts or 0):
        return [f"{correct} correct drafts in {steps} steps gave only {len(answer.output_ids)} tokens"]
    return []


def clock_problems(wall_s: float, outside_s: float, monotonic_s: float) -> list[str]:
    """Whether the request's time, the time around it and a second clock agree.

    Args:
        outside_s: by the same clock as `wall_s`, from before the call to after it.
        monotonic_s: the same stretch by `time.monotonic`.
    """
    if not (math.isfinite(wall_s) and 0.0 < wall_s <= outside_s + CLOCK_TOLERANCE_S):
        return [f"a request took {wall_s:.6f} s inside {outside_s:.6f} s"]
    if abs(outside_s - monotonic_s) > CLOCK_TOLERANCE_S + 0.001 * outside_s:
        return [f"two clocks disagree about a request: {outside_s:.6f} s and {monotonic_s:.6f} s"]
    return []


def changed_requests(samples: Sequence[Sample]) -> list[str]:
    """Requests for which the candidate gave, in any repeat, an output that stock never gave."""
    seen: dict[str, dict[Arm, set[str]]] = defaultdict(lambda: {"stock": set(), "candidate": set()})
    for sample in samples:
        seen[sample.request_id][sample.arm].add(sample.output_sha256)
    return [request for request, sides in seen.items() if not sides["candidate"] <= sides["stock"]]


def shortened_requests(outputs: Sequence[Output]) -> list[str]:
    """Requests whose candidate output is stock's, but ends earlier: token forcing would find nothing wrong with it."""
    by_request: dict[str, dict[Arm, tuple[int, ...]]] = defaultdict(dict)
    for output in outputs:
        by_request[output.request_id][output.arm] = output.output_ids
    both = {request: sides for request, sides in by_request.items() if len(sides) == 2}
    return [
        request
        for request, sides in both.items()
        if len(sides["candidate"]) < len(sides["stock"])
        and sides["stock"][: len(sides["candidate"])] == sides["candidate"]
    ]


def _log_speed(sample: Sample) -> float:
    return math.log(sample.completion_tokens / sample.wall_s)


def _device_speeds(samples: Sequence[Sample]) -> dict[int | None, float]:
    """Mean log speed of stock on each device. A swap puts every request on every device equally often; stock keeps no
    results, so what differs is the devices'."""
    found: dict[int | None, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.arm == "stock" and sample.completion_tokens:
            found[sample.device].append(_log_speed(sample))
    return {device: sum(speeds) / len(speeds) for device, speeds in found.items()}


def _reuse_gains(samples: Sequence[Sample], arm: Arm) -> dict[str, float]:
    """Per request: log(mean speed of its later runs / speed of its first run), each against its device's speed."""
    devices = _device_speeds(samples)
    runs: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        if sample.arm == arm and sample.completion_tokens:
            runs[sample.request_id].append(sample)
    gains = {}
    for request, found in runs.items():
        in_order = sorted(found, key=lambda s: s.started_s)
        ordered = [_log_speed(s) - devices.get(s.device, 0.0) for s in in_order]
        if len(ordered) > 1:
            gains[request] = sum(ordered[1:]) / (len(ordered) - 1) - ordered[0]
    return gains


def reuse_problems(samples: Sequence[Sample]) -> list[str]:
    """Whether the candidate speeds up on requests that it has seen, more than stock does (paired t-test)."""
    import numpy as np
    from scipy import stats

    candidate, stock = _reuse_gains(samples, "candidate"), _reuse_gains(samples, "stock")
    extra = [candidate[request] - stock[request] for request in candidate if request in stock]
    if len(extra) < 3 or float(np.mean(extra)) <= math.log1p(REUSE_LIMIT):
        return []
    if float(np.ptp(extra)) > 0 and float(stats.ttest_1samp(extra, 0.0).pvalue) >= REUSE_SIGNIFICANCE:
        return []
    faster = math.expm1(float(np.mean(extra)))
    return [f"the candidate is {faster:.0%} faster on requests it has answered before, beyond stock: results are kept"]
