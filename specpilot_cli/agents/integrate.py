"""Stacking: promoted pieces become one tree, measured again at every step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.agents import openings, prompts
from specpilot_cli.agents.budget import BudgetSpent
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.conversation import Conversation
from specpilot_cli.agents.seat import Seat
from specpilot_cli.agents.site import Site
from specpilot_cli.agents.tools.toolbox import integration_tools
from specpilot_cli.artifacts.round import DirectionRecord
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.git import diff_bytes


@dataclass(frozen=True)
class Stack:
    """A tree and the pieces in it."""

    pieces: tuple[DirectionRecord, ...]
    tree: str
    vary: tuple[str, ...]
    flags: tuple[str, ...]
    ratio: float
    """Measured on develop requests."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the pieces."""
        return tuple(piece.proposal.id for piece in self.pieces)


def _ratio(piece: DirectionRecord) -> float:
    figures = [r.figures for r in piece.asked if r.kind == "promote" and r.verdict == Verdict.PROMOTED and r.figures]
    return max((f.ratio for f in figures), default=1.0)


def stack(site: Site, records: Sequence[DirectionRecord], device: str) -> Stack | None:
    """The best tree that the promoted pieces give together; None where nothing was promoted.

    Starts with the fastest piece and adds the others one by one; one that does not go on top, or that leaves the whole
    no faster, is left out.
    """
    pieces = sorted(
        (r for r in records if r.result == "promoted" and r.tree), key=lambda r: (-_ratio(r), r.proposal.id)
    )
    if not pieces:
        return None
    first = pieces[0]
    best = Stack((first,), str(first.tree), first.vary, first.flags, _ratio(first))
    for piece in pieces[1:]:
        try:
            best = _with(site, best, piece, device) or best
        except BudgetSpent as spent:
            site.tell("integration", f"{piece.proposal.id} is left out: {spent.what}")
    return best


def _with(site: Site, best: Stack, piece: DirectionRecord, device: str) -> Stack | None:
    name = "+".join((*best.ids, piece.proposal.id))
    tree = _combined(site, best, piece, name)
    if tree is None:
        site.tell("integration", f"{piece.proposal.id} does not go with {', '.join(best.ids)}")
        return None
    site.keep(tree, "integration")
    vary = tuple(sorted({*best.vary, *piece.vary}))
    flags = (*best.flags, *(flag for flag in piece.flags if flag not in best.flags))
    questions = site.questions("integration", device)
    questions.inside(f"integration/{name}")
    reply = questions.ask(Question(kind="promote", tree=tree, vary=vary, flags=flags))
    ratio = reply.figures.ratio if reply.figures else 0.0
    if reply.verdict != Verdict.PROMOTED or ratio <= best.ratio:
        site.tell("integration", f"{name}: {ratio:.3f}, not above {best.ratio:.3f}: {reply.reason}")
        return None
    return Stack((*best.pieces, piece), tree, vary, flags, ratio)


def _combined(site: Site, best: Stack, piece: DirectionRecord, name: str) -> str | None:
    delta = diff_bytes(site.stock, site.stock_tree, str(piece.tree))
    try:
        return patch.apply(site.stock, best.tree, delta, name=piece.proposal.id).tree
    except patch.PatchDoesNotApply as conflict:
        return _by_hand(site, best, piece, delta, name, f"{conflict.fact} {conflict.reason}")


def _by_hand(site: Site, best: Stack, piece: DirectionRecord, delta: bytes, name: str, why: str) -> str | None:
    agent = f"integration/{name}"
    seat = Seat(site.stock, site.worktree(agent), best.tree, site.ref("integration"))
    seat.ready()
    tools = integration_tools(seat.folder, site.runner)
    talk = Conversation(site.desk, agent, prompts.system("integration"), tools, finish="finish", seat=seat)
    ended = talk.run(openings.integration(best.pieces, piece, delta, why), site.settings.turns)
    seat.remove()
    return seat.tree if ended.data.get("worked") and seat.tree != best.tree else None
