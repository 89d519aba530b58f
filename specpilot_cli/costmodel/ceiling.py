"""ceiling = (best τ / τ) × (profiled step / sum of floors) × (actual step / profiled step); paper section 3.2."""

from __future__ import annotations

from typing import Literal

from specpilot_cli.artifacts.ceiling import CeilingBody, ClassFloor, Factors, FloorSettings
from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.artifacts.replay import ReplayBody
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.costmodel.advice import MISSING, advice
from specpilot_cli.costmodel.best_tau import find
from specpilot_cli.costmodel.floor import class_floor


def compute(
    profile: ProfileBody, settings: FloorSettings, replay: ReplayBody | None = None, best_tau: float | None = None
) -> tuple[CeilingBody, tuple[str, ...]]:
    """The ceiling of a profile, and caveats where its inputs contradict each other or lack something.

    Args:
        replay: takes the place of the profile's own oracle.
        best_tau: takes the place of both, with a caveat.
    Raises:
        InputUnusable: no kernel class, or a replay of another deployment. UsageFault: a best τ below the profile's.
    """
    found = find(profile, replay, best_tau)
    profiled = profile.step.profiled_ms
    floors = tuple(class_floor(item, profiled, profile.device, settings) for item in profile.classes)
    total = sum(item.floor_ms for item in floors)
    if not total:
        raise InputUnusable(
            "The profile has no kernel class with work in it.", "", "Profile with a decode window in it."
        )
    factors = Factors(
        acceptance=found.best / found.chain if found.known else 1.0,
        kernels=profiled / total,
        outside=profile.step.step_ms / profiled,
    )
    product = factors.acceptance * factors.kernels * factors.outside
    body = CeilingBody(
        deployment_id=profile.deployment.id,
        device=profile.device,
        settings=settings,
        tau=profile.acceptance.tau,
        best_tau=found.best,
        best_tau_source=found.source,
        floors=floors,
        factors=factors,
        ceiling=product,
        target=_largest(factors),
        speedup_over_ar=profile.speedup_over_ar,
        ceiling_over_ar=profile.speedup_over_ar * product,
        acceptance_known=found.known,
        advice=advice(profile, floors, factors, found.best if found.known else None),
    )
    missing = () if found.known else (f"the acceptance factor is missing and counts as 1: {MISSING}",)
    given = (f"the best τ of {best_tau:g} was given, not measured",) if best_tau is not None else ()
    return body, (*given, *missing, *_doubts(floors))


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
