"""What each agent is told first: figures and material, never more than it needs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specpilot_cli.agents.conversation import as_data
from specpilot_cli.agents.gains import class_name
from specpilot_cli.artifacts.ceiling import CeilingBody, ClassFloor
from specpilot_cli.artifacts.round import DirectionRecord, Proposal, Reply, RoundBody, RoundSettings
from specpilot_cli.memory.select import Candidate, LeftOut


def ceiling_text(ceiling: CeilingBody) -> str:
    """The ceiling as lines."""
    step = sum(floor.time_ms for floor in ceiling.floors) * ceiling.factors.outside
    lines = [
        f"deployment {ceiling.deployment_id} on {ceiling.device.id}",
        f"accept length {ceiling.tau:.3f}; best that any tree could reach {ceiling.best_tau:.3f}",
        f"step {step:.4g} ms, of it outside the profiled kernels {step * (1 - 1 / ceiling.factors.outside):.4g} ms",
        f"speed over plain decoding {ceiling.speedup_over_ar:.3f}; possible {ceiling.ceiling_over_ar:.3f}",
        f"factors: acceptance {ceiling.factors.acceptance:.3f}, kernels {ceiling.factors.kernels:.3f}, "
        f"outside {ceiling.factors.outside:.3f}; the largest: {ceiling.target}",
        "kernel classes, furthest above their floor first (class, ms, floor ms, bound by):",
        *(_floor_line(floor) for floor in sorted(ceiling.floors, key=lambda f: f.floor_ms - f.time_ms)),
    ]
    return "\n".join(lines)


def _floor_line(floor: ClassFloor) -> str:
    return f"  {class_name(floor.phase, floor.name)}  {floor.time_ms:.4g}  {floor.floor_ms:.4g}  {floor.bound}"


def history_text(rounds: Sequence[RoundBody]) -> str:
    """What earlier rounds tried, a line a direction."""
    lines = []
    for body in rounds:
        for record in body.directions:
            figures = next((r.figures for r in reversed(record.asked) if r.figures), None)
            measured = f", measured {figures.ratio - 1:+.1%}" if figures else ""
            ends = "".join(f"; dead end: {end}" for end in record.dead_ends)
            lines.append(
                f"{record.proposal.title} ({record.proposal.id}): expected {record.expected_gain:+.1%}{measured}: "
                f"{record.result}: {record.reason}{ends}"
            )
    return "\n".join(lines)


def master(
    ceiling: CeilingBody,
    taken: Sequence[Candidate],
    left: Sequence[LeftOut],
    history: Sequence[RoundBody],
    settings: RoundSettings,
) -> str:
    """The master's first message."""
    memory = [f"{c.item.entry.id}: {c.item.entry.title} (at most {c.worth - 1:+.1%}; {c.why})" for c in taken]
    out = [f"{item.item.entry.id}: {item.item.entry.title}: {item.why}" for item in left]
    return "\n\n".join(
        (
            f"At most {settings.directions} directions; agents in parallel: {len(settings.devices)}; "
            f"minimum expected gain of a new algorithm: {settings.minimum_gain:.0%}.",
            "The ceiling:\n" + as_data("ceiling", ceiling_text(ceiling)),
            "Memory entries that fit here:\n" + as_data("memory", "\n".join(memory) or "none"),
            "Memory entries that do not, or that lost:\n" + as_data("memory", "\n".join(out) or "none"),
            "Tried in earlier rounds:\n" + as_data("history", history_text(history) or "nothing"),
        )
    )


def direction(proposal: Proposal, gain: float, ceiling: CeilingBody, settings: RoundSettings) -> str:
    """A direction agent's first message."""
    return "\n\n".join(
        (
            f"Your direction: {proposal.title} ({proposal.id}). You may ask the controller {settings.questions} times "
            f"and answer {settings.turns} times.",
            as_data(
                "master",
                f"why: {proposal.why}\nplan: {proposal.plan}\nassumes: {proposal.assumes.model_dump_json()}\n"
                f"expected gain by the cost model: {gain:+.1%}",
            ),
            as_data("ceiling", ceiling_text(ceiling)),
            "Your worktree is the unpatched engine. Begin with `list_files`.",
        )
    )


def integration(included: Sequence[DirectionRecord], piece: DirectionRecord, patch: bytes, why: str) -> str:
    """The integration agent's first message."""
    names = ", ".join(f"{r.proposal.title} ({r.proposal.id})" for r in included)
    return "\n\n".join(
        (
            f"In your worktree already: {names}. To be carried over: {piece.proposal.title} ({piece.proposal.id}).",
            f"git says: {as_data('git', why)}",
            as_data("patch", patch.decode(errors="replace")),
        )
    )


def reply_text(reply: Reply) -> str:
    """A controller's answer as one line of JSON."""
    fields = reply.model_dump(mode="json", include={"kind", "verdict", "reason", "figures", "mismatch_rate"})
    return json.dumps(fields, ensure_ascii=False)


def distiller(piece: DirectionRecord, others: Sequence[DirectionRecord], patch: bytes, final: Reply | None) -> str:
    """The distiller's first message."""
    failed = "\n".join(
        f"{r.proposal.title} ({r.proposal.id}): {r.result}: {r.reason}" + "".join(f"; {e}" for e in r.dead_ends)
        for r in others
        if r.result != "promoted"
    )
    asked = "\n".join(reply_text(reply) for reply in piece.asked)
    return "\n\n".join(
        (
            f"Promoted: {piece.proposal.title} ({piece.proposal.id}); expected {piece.expected_gain:+.1%}.",
            "The controller's answers on the way:\n" + as_data("controller", asked or "none"),
            "On sealed requests:\n" + as_data("controller", reply_text(final) if final else "not measured"),
            "The agent's own report:\n" + as_data(f"direction/{piece.proposal.id}", piece.report or "none"),
            "What failed in this round:\n" + as_data("round", failed or "nothing"),
            "The patch:\n" + as_data("patch", patch.decode(errors="replace")),
        )
    )
