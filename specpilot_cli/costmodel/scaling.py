"""Which part of the time does not scale with the devices, from speeds on different numbers of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specpilot_cli.artifacts.figures import RunFigures, Scaling

ASSUMPTIONS = (
    "time per token = scaling part / devices + fixed part, for AR and for speculation",
    "the accept length and the drafts are the same on every number of devices",
)


def scaling(runs: Sequence[RunFigures]) -> Scaling | None:
    """Both parts, of AR and of speculation; None where the runs have fewer than two device counts with both speeds.

    Two counts give two equations for two unknowns (exact); more are fitted by least squares.
    """
    usable = [run for run in runs if run.ar_tokens_per_s and run.spec_tokens_per_s]
    counts = [run.devices for run in usable]
    if len(set(counts)) < 2:
        return None
    ar = _parts(counts, [1e3 / float(run.ar_tokens_per_s or 1) for run in usable])
    spec = _parts(counts, [1e3 / float(run.spec_tokens_per_s or 1) for run in usable])
    most = max(counts)
    ar_time, spec_time = ar[0] / most + ar[1], spec[0] / most + spec[1]
    return Scaling(
        ar_scaling_ms=ar[0],
        ar_fixed_ms=ar[1],
        spec_scaling_ms=spec[0],
        spec_fixed_ms=spec[1],
        devices=most,
        ar_fixed_share=ar[1] / ar_time,
        spec_fixed_share=spec[1] / spec_time,
        break_even_fixed_ms=ar_time - spec[0] / most,
        speedup_at_ar_fixed=ar_time / (spec[0] / most + ar[1]),
        residual=max(ar[2], spec[2]),
    )


def _parts(devices: Sequence[int], ms: Sequence[float]) -> tuple[float, float, float]:
    """(scaling, fixed, largest relative deviation)."""
    design, time = np.array([[1.0 / count, 1.0] for count in devices]), np.array(ms)
    (moving, fixed), *_ = np.linalg.lstsq(design, time, rcond=None)
    deviation = float(np.max(np.abs(design @ np.array([moving, fixed]) - time) / time))
    return float(moving), float(fixed), deviation if len(set(devices)) > 2 else 0.0


def say(found: Scaling) -> tuple[str, ...]:
    """Sentences; a negative part means that the assumption does not hold."""
    if min(found.ar_scaling_ms, found.ar_fixed_ms, found.spec_scaling_ms, found.spec_fixed_ms) < 0:
        return ("the speeds do not fit a scaling part and a fixed part: something else changed with the devices",)
    n = found.devices
    gain = found.speedup_at_ar_fixed
    return (
        f"AR: {found.ar_scaling_ms:.2f} ms a token scale, {found.ar_fixed_ms:.2f} ms do not; speculation:"
        f" {found.spec_scaling_ms:.2f} ms and {found.spec_fixed_ms:.2f} ms a token",
        f"on {n} devices the part that does not scale is {100 * found.ar_fixed_share:.0f} % of AR's time and"
        f" {100 * found.spec_fixed_share:.0f} % of speculation's: work that runs on every device, draft steps,"
        " communication and the host",
        f"speculation breaks even on {n} devices when its fixed time is {found.break_even_fixed_ms:.2f} ms a token"
        f" (now {found.spec_fixed_ms:.2f}); with AR's {found.ar_fixed_ms:.2f} ms it would be {gain:.2f}×",
    )
