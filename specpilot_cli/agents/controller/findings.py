"""From the artifacts of stages to what the controller says of a tree. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from specpilot_cli.agents.controller.protocol import Figures, Kind, Reply
from specpilot_cli.agents.controller.runner import Done
from specpilot_cli.artifacts.forcing import ForcingBody
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.profile import ProfileBody
from specpilot_cli.artifacts.verdict import Verdict

MAX_TEXT = 300
MAX_CLASSES = 24
Again = Literal["", "seed", "repeats"]
"""Whether measuring once more may say more: with another order of the requests, or with twice the repeats."""
_SEALED = {
    Verdict.NOT_COMPARABLE: "The arms differ in more than the tree; the artifact says in what.",
    Verdict.INFRA: "The machine or an engine failed while sealed requests were measured.",
}
"""In the place of reasons that may hold an engine's own words: one that has seen sealed prompts could say them."""


@dataclass(frozen=True)
class Finding:
    """What a question came to."""

    verdict: Verdict | None
    reason: str
    figures: Figures | None = None
    mismatch_rate: float | None = None
    summary: Mapping[str, Any] = field(default_factory=dict)
    artifacts: tuple[tuple[str, str], ...] = ()
    again: Again = ""
    keep: bool = True
    """Whether an equal question has this answer from now on."""

    def reply(self, kind: Kind, seconds: float) -> Reply:
        """As it is said."""
        return Reply(
            kind=kind,
            verdict=self.verdict,
            reason=self.reason,
            figures=self.figures,
            mismatch_rate=self.mismatch_rate,
            summary=dict(self.summary),
            artifacts=self.artifacts,
            seconds=seconds,
        )

    def since(self, *others: Finding) -> Finding:
        """With the artifacts of what came before it in front of its own."""
        found = [item for other in (*others, self) for item in other.artifacts]
        return replace(self, artifacts=tuple(dict.fromkeys(found)))


def flat(text: str) -> str:
    """One printable line of at most `MAX_TEXT` characters: what it came from may hold an engine's own words."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"


def _named(*stages: Done) -> tuple[tuple[str, str], ...]:
    return tuple((done.name, done.sha256) for done in stages if done.sha256 is not None)


def failed(done: Done, what: str, *, sealed: bool = False) -> Finding:
    """INFRA: a stage gave no artifact. Another seed is no help where not one request could be measured."""
    reason = _SEALED[Verdict.INFRA] if sealed else flat(f"{what} failed: {done.error}")
    return Finding(Verdict.INFRA, reason, again="seed" if done.measured else "")


def paired(done: Done, noise: Done, *, sealed: bool) -> Finding:
    """What a paired run says of the speed."""
    if done.artifact is None:
        return failed(done, "The paired run", sealed=sealed)
    body: PairRunBody = done.artifact.body
    verdict = body.verdict or Verdict.INFRA
    free = verdict not in _SEALED
    again: dict[Verdict, Again] = {Verdict.INFRA: "seed", Verdict.UNDERPOWERED: "repeats"}
    return Finding(
        verdict,
        _SEALED[verdict] if sealed and not free else flat(body.reason),
        figures=_figures(body) if free or not sealed else None,
        artifacts=_named(done, noise),
        again=again.get(verdict, ""),
    )


def _figures(body: PairRunBody) -> Figures | None:
    if body.gain is None or body.bar is None:
        return None
    taus = {arm: summary.tau for arm, summary in body.summary.items()}
    return Figures(
        ratio=body.gain.ratio,
        low=body.gain.low,
        high=body.gain.high,
        bar=body.bar,
        tau_stock=taus.get("stock"),
        tau_candidate=taus.get("candidate"),
    )


def has_outputs(done: Done, speed: Finding) -> bool:
    """Whether forcing the outputs of a paired run can say anything: PROMOTED needs it, and LOSSY wins over any speed.

    Outputs that are stock's own, of a run that promotes nothing, need no forcing.
    """
    if speed.verdict is Verdict.PROMOTED:
        return True
    return speed.verdict in (Verdict.NO_EFFECT, Verdict.UNDERPOWERED) and done.artifact.body.outputs_changed > 0


def forced(done: Done, *, sealed: bool = False) -> Finding:
    """What token forcing says of the outputs. More repeats are no help to it: they give the same tokens again."""
    if done.artifact is None:
        return failed(done, "Token forcing", sealed=sealed)
    body: ForcingBody = done.artifact.body
    verdict = body.verdict or Verdict.INFRA
    if "candidate" not in body.sides or "stock" not in body.sides:
        return Finding(Verdict.INFRA, "Token forcing gave no rates.", artifacts=_named(done))
    ours, theirs = body.sides["candidate"], body.sides["stock"]
    text = (
        f"token forcing of {ours.tokens} tokens: mismatch rate {ours.rate:.3%} (stock {theirs.rate:.3%}), "
        f"{ours.large_events} large events (stock {theirs.large_events})"
    )
    if ours.ended_early:
        text += f", {ours.ended_early} outputs end early"
    if verdict is Verdict.UNDERPOWERED:
        more = f", about {body.tokens_needed} more of each arm would do" if body.tokens_needed else ""
        text += f"; too few tokens to call it lossless{more}"
    return Finding(verdict, text, mismatch_rate=ours.rate, artifacts=_named(done))


def joined(speed: Finding, tokens: Finding) -> Finding:
    """Speed and losslessness together: PROMOTED only if both passed, LOSSY whatever the speed."""
    both = f"{speed.reason}; {tokens.reason}"
    artifacts = (*speed.artifacts, *tokens.artifacts)
    mixed = replace(speed, reason=both, mismatch_rate=tokens.mismatch_rate, artifacts=artifacts)
    if tokens.verdict is Verdict.LOSSY or (
        speed.verdict is Verdict.PROMOTED and tokens.verdict is not Verdict.LOSSLESS
    ):
        return replace(mixed, verdict=tokens.verdict, again=tokens.again)
    return mixed


def profiled(done: Done) -> Finding:
    """Where a step's time goes."""
    if done.artifact is None:
        return failed(done, "The profile")
    body: ProfileBody = done.artifact.body
    largest = sorted(body.classes, key=lambda item: -item.time_ms)[:MAX_CLASSES]
    summary = {
        "step_ms": body.step.step_ms,
        "phases_ms": {flat(name): ms for name, ms in body.step.phases_ms.items()},
        "classes_ms": {flat(f"{item.phase}/{item.name}"): item.time_ms for item in largest},
        "outside_ms": body.step.outside_ms,
        "ar_step_ms": body.autoregressive.step_ms,
        "tau": body.acceptance.tau,
        "relative_cost": body.relative_cost,
        "speedup_over_ar": body.speedup_over_ar,
    }
    reason = (
        f"step {body.step.step_ms:.3f} ms, accept length {body.acceptance.tau:.2f}, "
        f"{body.speedup_over_ar:.2f} times the speed of AR"
    )
    return Finding(None, reason, summary=summary, artifacts=_named(done))


def noisy(done: Done) -> Finding:
    """The noise of the round's design."""
    body: PairRunBody = done.artifact.body
    summary = {"noise": body.noise, "repeats": body.design.repeats, "requests": len(body.requests.ids)}
    return Finding(None, flat(body.reason), summary=summary, artifacts=_named(done))


def no_noise(done: Done) -> Finding:
    """The noise could not be measured, which says nothing of any tree. Not kept: everything else waits for it."""
    if done.artifact is None:
        return replace(failed(done, "Measuring the noise"), again="", keep=False)
    reason = flat(f"The noise could not be measured: {done.artifact.body.reason}")
    return Finding(Verdict.INFRA, reason, artifacts=_named(done), keep=False)


UNSEALED = Finding(Verdict.INFRA, "Both runs passed, but `seal make` refused them; its log says why.")
"""The evidence, not the tree, has a fault. What it said may name sealed requests."""
