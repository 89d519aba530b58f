"""ceiling = (best τ / τ) × (profiled step / sum of floors) × (actual step / profiled step); paper section 3.2."""

from __future__ import annotations

from typing import Literal

from specpilot_cli.artifacts.ceiling import CeilingBody, ClassFloor, Factors, FloorSettings
from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.costmodel.floor import class_floor


def compute(profile: ProfileBody, settings: FloorSettings) -> tuple[CeilingBody, tuple[str, ...]]:
    """The ceiling of a profile, and caveats where its inputs contradict each other.

    Raises:
        InputUnusable: the profile recorded no oracle, or no kernel class.
    """
    acceptance = profile.acceptance
    if acceptance.oracle_tau is None or acceptance.oracle_chain_tau is None:
        raise InputUnusable(
            "The profile has no oracle τ.", "Its engine recorded no lattices.", "Give a replay artifact."
        )
    profiled = profile.step.profiled_ms
    floors = tuple(class_floor(item, profiled, profile.device, settings) for item in profile.classes)
    total = sum(item.floor_ms for item in floors)
    if not total:
        raise InputUnusable(
            "The profile has no kernel class with work in it.", "", "Profile with a decode window in it."
        )
    factors = Factors(
        acceptance=acceptance.oracle_tau / acceptance.oracle_chain_tau,
        kernels=profiled / total,
        outside=profile.step.step_ms / profiled,
    )
    product = factors.acceptance * factors.kernels * factors.outside
    body = CeilingBody(
        deployment_id=profile.deployment.id,
        device=profile.device,
        settings=settings,
        tau=acceptance.tau,
        best_tau=acceptance.oracle_tau,
        best_tau_source=f"oracle over the top {acceptance.candidates} of {acceptance.oracle_steps} recorded steps",
        floors=floors,
        factors=factors,
        ceiling=product,
        target=_largest(factors),
        speedup_over_ar=profile.speedup_over_ar,
        ceiling_over_ar=profile.speedup_over_ar * product,
    )
    return body, _doubts(floors)


def _largest(factors: Factors) -> Literal["acceptance", "kernels", "outside"]:
    named: tuple[tuple[float, Literal["acceptance", "kernels", "outside"]], ...] = (
        (factors.acceptance, "acceptance"),
        (factors.kernels, "kernels"),
        (factors.outside, "outside"),
    )
    return max(named)[1]


def _doubts(floors: tuple[ClassFloor, ...]) -> tuple[str, ...]:
    """Classes that beat their floor: the peaks or the work formula are wrong for them."""
    return tuple(
        f"{item.phase}/{item.name} took {item.time_ms:.4g} ms, less than its floor of {item.floor_ms:.4g} ms"
        for item in floors
        if item.bound != "unknown" and item.time_ms < item.floor_ms
    )
