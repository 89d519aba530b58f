"""Every definition of the acceptance length that is in use, on the same steps, and a converter between them.

A definition has four parts. Two tools can both be right and 1.0 apart:

- weighting: `pooled` sum C / sum V; `per-request` mean of C / V; `token-weighted` sum C (C / V) / sum C
  (C tokens and V verify steps of a request).
- end: the step in which an output ends counts `cut` (tokens that were delivered), `whole` (also what was accepted
  behind the end: vLLM issue 56101), or it is `left-out`.
- bonus: whether the target's own token counts (vLLM issue 17908, EAGLE issue 298).
- first: whether the token that prefill gives counts as if a step had made it (completion tokens / verify count:
  SGLang issue 33518).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.artifacts.replay import LengthRow
from specpilot_cli.core.errors import UsageFault

Weighting = Literal["pooled", "per-request", "token-weighted"]
End = Literal["cut", "whole", "left-out"]
Counts1 = NDArray[np.int64]


@dataclass(frozen=True)
class Counts:
    """Per request [R]: verify steps, tokens they committed before any cut (bonus included), tokens behind the cut, and
    tokens (before the cut) of the step in which the output ended."""

    steps: Counts1
    tokens: Counts1
    beyond: Counts1
    final: Counts1


@dataclass(frozen=True)
class Definition:
    """One acceptance length."""

    weighting: Weighting = "pooled"
    end: End = "cut"
    bonus: bool = True
    first: bool = False

    @property
    def name(self) -> str:
        """Such as `pooled/cut/bonus` or `per-request/whole/drafts`; `+first` where the prefill token counts."""
        return f"{self.weighting}/{self.end}/{'bonus' if self.bonus else 'drafts'}{'+first' if self.first else ''}"

    def measure(self, counts: Counts) -> float:
        """The value on these requests (those without a step in it are left out)."""
        steps, tokens = counts.steps, counts.tokens
        if self.end == "cut":
            tokens = tokens - counts.beyond
        elif self.end == "left-out":
            steps, tokens = steps - 1, tokens - counts.final
        used = steps > 0
        steps, tokens = steps[used], tokens[used] + (1 if self.first else 0)
        if not len(steps):
            return 0.0
        length = tokens / steps
        if self.weighting == "pooled":
            value = tokens.sum() / steps.sum()
        elif self.weighting == "per-request":
            value = length.mean()
        else:
            value = (tokens * length).sum() / tokens.sum()
        return float(value) - (0 if self.bonus else 1)


TAU = Definition(end="whole")
"""What `specpilot replay` calls τ: unbiased by where outputs happen to end (Wald's identity)."""
USED_BY = {
    "pooled/cut/bonus": "`specpilot profile`, `pair-run`: 1 + correct drafts / verify steps, as engines count",
    "pooled/whole/bonus": "`specpilot replay`; vLLM's 1 + accepted / drafts (counts behind the end, issue 56101)",
    "pooled/whole/drafts": "the same without the bonus token (vLLM issue 17908)",
    "pooled/cut/bonus+first": "completion tokens / verify count (SGLang issue 33518)",
    "per-request/cut/bonus": "mean of the requests' own lengths",
    "per-request/cut/bonus+first": "mean of completion tokens / verify count",
}


def definitions() -> tuple[Definition, ...]:
    """All of them; the prefill token is only ever counted with the cut."""
    grid = product(get_args(Weighting), get_args(End), (True, False), (False, True))
    return tuple(Definition(w, e, b, f) for w, e, b, f in grid if not f or (e == "cut" and b))


def by_name(name: str) -> Definition:
    """Raises: UsageFault: no such definition."""
    for found in definitions():
        if found.name == name:
            return found
    raise UsageFault(
        f"There is no acceptance length '{name}'.", "", "Known: " + ", ".join(d.name for d in definitions())
    )


def table(counts: Counts) -> tuple[LengthRow, ...]:
    """Every definition on the same requests."""
    return tuple(
        LengthRow(
            name=d.name, weighting=d.weighting, end=d.end, bonus=d.bonus, first=d.first,
            value=d.measure(counts), used_by=USED_BY.get(d.name, ""),
        )
        for d in definitions()
    )  # fmt: skip


def convert(value: float, source: Definition, target: Definition, counts: Counts | None = None) -> float:
    """A figure under one definition as a figure under another.

    Without counts only the bonus token can be converted, exactly. With the counts of comparable requests the
    difference of both definitions on them is added: exact on those requests, an estimate elsewhere.

    Raises:
        UsageFault: the definitions differ in more than the bonus token and there are no counts.
    """
    if counts is not None:
        return value + target.measure(counts) - source.measure(counts)
    if (source.weighting, source.end, source.first) != (target.weighting, target.end, target.first):
        raise UsageFault(
            f"{source.name} cannot be converted to {target.name} by itself.",
            "They weigh requests or count the ends differently.",
            "Give lattices or counts of comparable requests.",
        )
    return value + target.bonus - source.bonus
