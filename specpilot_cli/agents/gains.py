"""What a direction is expected to gain: the cost model applied to what it assumes.

speedup = τ / c (paper section 3.2), so the gain over the present system is (τ'/τ) × (step / step').
"""

from __future__ import annotations

from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import Assumptions
from specpilot_cli.core.errors import UsageFault


def class_name(phase: str, name: str) -> str:
    """A kernel class as directions call it."""
    return f"{phase}/{name}"


def expected_gain(ceiling: CeilingBody, assumes: Assumptions) -> float:
    """Ratio - 1 of tokens per second, if everything comes true that is assumed.

    Raises:
        UsageFault: an assumption beyond what is possible: τ over the best, a class under its floor, an unknown class,
            more time outside than there is.
    """
    known = {class_name(floor.phase, floor.name): floor for floor in ceiling.floors}
    if unknown := sorted(set(assumes.faster) - set(known)):
        raise UsageFault(f"There is no kernel class {unknown[0]}.", f"There are: {', '.join(sorted(known))}.")
    tau = assumes.tau if assumes.tau is not None else ceiling.tau
    if tau > ceiling.best_tau:
        raise UsageFault(f"No tree reaches an accept length of {tau:g}.", f"The best: {ceiling.best_tau:.3f}.")
    profiled = sum(floor.time_ms for floor in ceiling.floors)
    outside = profiled * (ceiling.factors.outside - 1)
    after = 0.0
    for name, floor in known.items():
        time = floor.time_ms / assumes.faster.get(name, 1.0)
        if time < min(floor.floor_ms, floor.time_ms) * (1 - 1e-9):
            raise UsageFault(
                f"{name} cannot take {time:.4g} ms.",
                f"Its floor is {floor.floor_ms:.4g} ms, at most {floor.time_ms / floor.floor_ms:.2f} times faster.",
            )
        after += time
    after += assumes.outside_ms if assumes.outside_ms is not None else outside
    return (tau / ceiling.tau) * ((profiled + outside) / after) - 1
