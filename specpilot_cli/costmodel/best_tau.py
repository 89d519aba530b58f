"""The best τ any tree could accept: a replay's, the profile's own oracle, or one that the user gives."""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.artifacts.replay import Curve, ReplayBody
from specpilot_cli.core.errors import InputUnusable, UsageFault

ORACLE, CHAIN = "oracle", "chain"


@dataclass(frozen=True)
class BestTau:
    """τ of the oracle, τ of the stock chain on the same recording, and where both come from."""

    best: float
    chain: float
    source: str
    known: bool = True
    """False: nobody knows it, and `best` is the profile's own τ."""


def find(profile: ProfileBody, replay: ReplayBody | None, given: float | None) -> BestTau:
    """What was given, else the replay's, else the profile's oracle, else the profile's own τ, marked as unknown.

    Raises:
        UsageFault: the given τ is below the profile's. InputUnusable: see `from_replay`.
    """
    tau = profile.acceptance.tau
    if given is not None:
        if given < tau:
            raise UsageFault(f"A best τ of {given:g} is below the profile's {tau:.3f}.", "The best is at least that.")
        return BestTau(given, tau, "given by the user")
    if replay is not None:
        return from_replay(profile, replay)
    return from_profile(profile) or BestTau(tau, tau, "unknown: the engine recorded no lattices", known=False)


def from_profile(profile: ProfileBody) -> BestTau | None:
    """The oracle at the steps that stock took while it was profiled; None where the engine recorded no lattices."""
    acceptance = profile.acceptance
    if acceptance.oracle_tau is None or acceptance.oracle_chain_tau is None:
        return None
    source = f"oracle over the top {acceptance.candidates} of {acceptance.oracle_steps} recorded steps"
    return BestTau(acceptance.oracle_tau, acceptance.oracle_chain_tau, source)


def from_replay(profile: ProfileBody, replay: ReplayBody) -> BestTau:
    """The largest oracle τ over the replayed recordings of this deployment, against the chain at stock's positions.

    Raises:
        InputUnusable: another deployment, or no oracle, or no chain at the profile's draft positions.
    """
    wanted, stock = profile.deployment.id, len(profile.acceptance.position_rate)
    ours = {item.name: item for item in replay.lattices if item.deployment_id == wanted}
    if not ours:
        raise InputUnusable(f"The replay has no recording of {wanted}.", "", "Record that deployment's lattices.")
    curves = [curve for curve in replay.curves if curve.lattice in ours]
    oracles = [curve for curve in curves if curve.builder == ORACLE]
    chains = [curve for curve in curves if curve.builder == CHAIN and curve.positions == stock]
    if not oracles or not chains:
        raise InputUnusable(
            f"The replay has no oracle, or no chain at {stock} positions.",
            "The ceiling compares the two.",
            f"Replay with --builder chain,oracle --positions {stock}.",
        )
    best = max(oracles, key=lambda curve: curve.points[-1].tau)
    chain = min(chains, key=lambda curve: curve.cut_from or 0)  # one that was drafted as stock drafts, if there is one
    return BestTau(best.points[-1].tau, _last(chain), _source(best, ours[best.lattice].candidates))


def _last(curve: Curve) -> float:
    """τ at the largest budget."""
    return curve.points[-1].tau


def _source(curve: Curve, candidates: int) -> str:
    point = curve.points[-1]
    return (
        f"replayed oracle over the top {candidates} at {curve.positions} positions ({point.steps} {curve.walk},"
        f" {point.low:.2f} to {point.high:.2f})"
    )
