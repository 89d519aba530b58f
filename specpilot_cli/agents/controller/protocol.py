"""Questions to the controller and its answers: one JSON object a line, over the process's stdin and stdout."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import GitTree, Record, Sha256
from specpilot_cli.artifacts.verdict import Verdict

Kind = Literal["noise", "profile", "screen", "force", "promote", "final"]
"""noise: stock against stock, the bar of every later question (asked once, kept).
profile: where a step of the tree spends its time. screen: a short paired run on develop requests.
force: token forcing of the last screen's outputs. promote: a full paired run on develop requests, then forcing.
final: two paired runs on sealed requests with another seed each, forcing of both, and the seal."""


class Question(Record):
    """What is asked of a tree. Equal questions have one answer: it is measured once and kept."""

    kind: Kind
    tree: GitTree | None = None
    """A tree in the stock repository's object store (the round put it there); None for `noise`."""
    vary: tuple[str, ...] = ()
    """Keys of /server_info in which the tree may differ from stock."""
    flags: tuple[str, ...] = ()
    """Engine flags of the candidate alone."""


class Figures(Record):
    """Gain of a paired run."""

    ratio: Annotated[float, Field(gt=0)]
    low: Annotated[float, Field(gt=0)]
    """95 % interval."""
    high: Annotated[float, Field(gt=0)]
    bar: Annotated[float, Field(ge=0)]
    """The gain that the lower bound must exceed, such as 0.05."""
    tau_stock: float | None = None
    tau_candidate: float | None = None


class Reply(Record):
    """The controller's word. Holds no prompt, output, threshold or key."""

    kind: Kind
    verdict: Verdict | None
    """PROMOTED for promote and final only where speed and losslessness both passed; None where there is nothing to
    judge (noise, profile)."""
    reason: str
    """One or two sentences for people and agents."""
    figures: Figures | None = None
    mismatch_rate: float | None = None
    summary: dict[str, Any] = Field(default_factory=dict)
    """profile: the step's time by phase and class; noise: its value."""
    artifacts: tuple[tuple[str, Sha256], ...] = ()
    """Files in the controller's folder that the answer rests on: name and digest."""
    seconds: Annotated[float, Field(ge=0)]
    """Wall-clock time of measuring, 0 where the answer was known."""
