"""A ceiling in words: every sentence follows from its figures."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_cli.artifacts.ceiling import ClassFloor, Factors
from specpilot_cli.artifacts.profile import ProfileBody

W12_BITS = 12.02
"""Bits a weight in the lossless 12-bit format, escapes included (README, `w12 audit`)."""
NAMED = 3
WORTH_SAYING = 1.01
MISSING = "no oracle and no replay: give --replay, or --best-tau X with a caveat"


def advice(
    profile: ProfileBody, floors: Sequence[ClassFloor], factors: Factors, best_tau: float | None
) -> tuple[str, ...]:
    """Sentences, the largest factor first.

    Args:
        best_tau: None where it is not known.
    """
    parts = {
        "acceptance": _acceptance(profile, factors, best_tau),
        "kernels": _kernels(profile, floors, factors),
        "outside": _outside(profile, factors),
    }
    order = sorted(parts, key=lambda name: -getattr(factors, name))
    said = [line for name in order for line in parts[name]]
    return (*_losing(profile, floors), *said, *_weights(profile, floors))


def _losing(profile: ProfileBody, floors: Sequence[ClassFloor]) -> list[str]:
    if profile.speedup_over_ar >= 1:
        return []
    floor = max(1.0, sum(item.floor_ms for item in floors) / profile.autoregressive.step_ms)
    return [
        f"speculation loses here ({profile.speedup_over_ar:.2f}× AR): at this step it pays above τ ="
        f" {profile.relative_cost:.2f}, with every class at its floor and nothing outside above τ = {floor:.2f}"
    ]


def _acceptance(profile: ProfileBody, factors: Factors, best_tau: float | None) -> list[str]:
    if best_tau is None:
        return [f"the acceptance factor is missing ({MISSING}); it counts as 1, so the ceiling may be higher"]
    if factors.acceptance < WORTH_SAYING:
        return [f"the drafts leave nothing: τ {profile.acceptance.tau:.2f} is all that the candidates allow"]
    return [
        f"another choice of drafts is worth at most {factors.acceptance:.2f}× (best τ {best_tau:.2f}; now"
        f" {profile.acceptance.tau:.2f})"
    ]


def _kernels(profile: ProfileBody, floors: Sequence[ClassFloor], factors: Factors) -> list[str]:
    if factors.kernels < WORTH_SAYING:
        return []
    above = sorted(floors, key=lambda item: item.floor_ms - item.time_ms)[:NAMED]
    step, found = profile.step.step_ms, []
    for item in above:
        gained = item.time_ms - item.floor_ms
        if item.bound != "unknown" and item.floor_ms and 0 < gained < step and step / (step - gained) >= WORTH_SAYING:
            found.append(
                f"{item.phase}/{item.name} ({100 * item.time_ms / step:.0f} % of the step) takes"
                f" {item.time_ms / item.floor_ms:.1f} times its floor by {item.bound}; at its floor the step would be"
                f" {step / (step - gained):.2f}× faster"
            )
    return found


def _outside(profile: ProfileBody, factors: Factors) -> list[str]:
    if factors.outside < WORTH_SAYING:
        return []
    step = profile.step.step_ms
    return [
        f"{step - profile.step.profiled_ms:.3g} of {step:.3g} ms a step belong to no kernel (host, launches, gaps);"
        f" without them the step would be {factors.outside:.2f}× faster"
    ]


def _weights(profile: ProfileBody, floors: Sequence[ClassFloor]) -> list[str]:
    """What 12-bit weights can save: their share of the bytes of products that wait for bytes."""
    if not sixteen_bit(profile):
        return []
    waiting = sum(item.time_ms for item in floors if item.bound == "bytes" and is_product(item.name))
    share = min(1.0, waiting / profile.step.step_ms)
    if not share:
        return []
    gain = 1 / (1 - share * (1 - W12_BITS / 16))
    return [
        f"weights are {100 * share:.0f} % of the step (matrix products bound by bytes); 12-bit weights are worth at"
        f" most {gain:.2f}× here"
    ]


def is_product(name: str) -> bool:
    """Whether a kernel class reads weights."""
    return name == "lm_head" or name == "gemm" or name.startswith("gemm_")


def sixteen_bit(profile: ProfileBody) -> bool:
    """Whether the target's weights are BF16, as far as `/server_info` says."""
    info = profile.server.info
    plain = not info.get("quantization") and info.get("dtype", "auto") in ("auto", "bfloat16")
    return profile.deployment.engine != "miniengine" and plain
