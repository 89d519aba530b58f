"""δ, the near-tie threshold: where it comes from, and how Phase 0 rounds it (arXiv:2611.02501, summary section 3.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from specpilot_cli.artifacts.base import Source
from specpilot_cli.artifacts.forcing import ForcingArtifact
from specpilot_cli.artifacts.io import Loaded
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.forcing.thresholds import Thresholds


@dataclass(frozen=True)
class Delta:
    """A value of δ with its origin."""

    nats: float
    source: str
    inputs: tuple[Source, ...] = ()
    caveats: tuple[str, ...] = ()


def by_hand(nats: float) -> Delta:
    """From the command line: an override, so a caveat."""
    return Delta(nats, "--delta", caveats=(f"δ = {nats:g} nat was given by hand",))


def by_default(thresholds: Thresholds) -> Delta:
    """From the thresholds file."""
    return Delta(thresholds.delta_default_nats, "default of thresholds.toml (not measured on this deployment)")


def measured(artifact: Loaded[ForcingArtifact]) -> Delta:
    """From a Phase-0 artifact, whose caveats come along.

    Raises:
        InputUnusable: it is a forcing artifact of another kind.
    """
    body, name = artifact.artifact.body, artifact.source.name
    if body.phase0 is None:
        raise InputUnusable(f"{name}: not a Phase-0 artifact.", "", "Measure one: specpilot force-tokens --phase0 PAIR")
    return Delta(body.delta_nats, f"Phase 0: {name}", (artifact.source,), artifact.artifact.caveats)


def rounded_delta(largest_nats: float, grid_nats: float) -> float:
    """`largest_nats` rounded up to a multiple of `grid_nats`; at least one multiple.

    >>> rounded_delta(0.232, 0.125)
    0.25
    """
    steps = math.ceil(Fraction(largest_nats) / Fraction(grid_nats))  # exact: 0.25 stays 0.25
    return max(steps, 1) * grid_nats


def first_divergence(stock: Sequence[int], autoregressive: Sequence[int], request_id: str) -> int | None:
    """Index of the first token that differs; None for equal outputs.

    Raises:
        InputUnusable: one output only ends earlier, which no rounding explains.
    """
    for position, (left, right) in enumerate(zip(stock, autoregressive, strict=False)):
        if left != right:
            return position
    if len(stock) != len(autoregressive):
        raise InputUnusable(
            f"Request {request_id}: the outputs of stock and AR have different lengths and no token that differs.",
            f"{len(stock)} and {len(autoregressive)} tokens.",
        )
    return None
