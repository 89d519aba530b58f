"""Distilling: what the round learned becomes memory entries, each kept only if it reproduces its tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specpilot_cli.agents import openings, prompts
from specpilot_cli.agents.budget import BudgetSpent
from specpilot_cli.agents.conversation import Conversation
from specpilot_cli.agents.integrate import Stack
from specpilot_cli.agents.seat import Seat
from specpilot_cli.agents.site import Site
from specpilot_cli.agents.tools.toolbox import distiller_tools
from specpilot_cli.artifacts.round import DirectionRecord, Kept, Reply
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.memory.add import Draft, add
from specpilot_cli.memory.check import Checker
from specpilot_cli.memory.entry import DeadEnd, Tried, load_entry
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees.git import diff_bytes

NO_WORDS = "# Limits of {id}\n\n## Limits\nNone established beyond the evidence.\n"


def distil(
    site: Site, records: Sequence[DirectionRecord], stack: Stack | None, final: Reply | None
) -> tuple[Kept, ...]:
    """Write the entries of a round into its own memory room.

    The sealed tree comes with its evidence. Pieces that are in it and are not all of it are kept as unmeasured entries,
    and a direction that lost on time as a negative one. A lossy direction becomes no entry: it must not be applied.
    """
    kept = []
    sealed = final if final is not None and final.verdict == Verdict.PROMOTED else None
    if stack is not None:
        whole = _whole(stack)
        kept.append(_entry(site, whole, records, sealed, _draft_of(site, whole, records, final)))
        if len(stack.pieces) > 1:
            kept += [_entry(site, p, records, None, _draft_of(site, p, records, None)) for p in stack.pieces]
    kept += [_entry(site, r, records, None, _negative(site, r)) for r in records if _lost(site, r)]
    return tuple(kept)


def _whole(stack: Stack) -> DirectionRecord:
    first = stack.pieces[0]
    if len(stack.pieces) == 1:
        return first
    names = ", ".join(piece.proposal.title for piece in stack.pieces)
    proposal = first.proposal.model_copy(update={"id": "-".join(stack.ids)[:40].strip("-"), "title": names[:120]})
    fields = {"proposal": proposal, "tree": stack.tree, "vary": stack.vary, "flags": stack.flags}
    return first.model_copy(update={**fields, "asked": tuple(r for p in stack.pieces for r in p.asked)})


def _lost(site: Site, record: DirectionRecord) -> bool:
    measured = any(reply.figures for reply in record.asked)
    return record.result == "no effect" and measured and record.tree not in (None, site.stock_tree)


def _draft_of(
    site: Site, piece: DirectionRecord, records: Sequence[DirectionRecord], final: Reply | None
) -> dict[str, Any]:
    """What the distiller says of a piece; the program's own plain words where it cannot be asked."""
    agent = f"distiller/{piece.proposal.id}-{str(piece.tree)[:8]}"
    tools = distiller_tools()
    talk = Conversation(site.desk, agent, prompts.system("distiller"), tools, finish="write_entry")
    patch = diff_bytes(site.stock, site.stock_tree, str(piece.tree))
    try:
        ended = talk.run(openings.distiller(piece, records, patch, final), max_turns=6)
    except BudgetSpent as spent:
        site.tell(agent, f"no words of its own: {spent.what}")
        return {}
    return ended.data


def _negative(site: Site, record: DirectionRecord) -> dict[str, Any]:
    figures = next(reply.figures for reply in reversed(record.asked) if reply.figures)
    tried = {"quantity": "gain", "value": figures.ratio, "unit": "", "deployment": site.ceiling.deployment_id}
    dead_ends = [{"tried": record.proposal.title, "why": end} for end in record.dead_ends]
    return {"tried": [{**tried, "source": f"round {site.round_id}"}], "dead_ends": dead_ends}


def _entry(
    site: Site, piece: DirectionRecord, records: Sequence[DirectionRecord], sealed: Reply | None, words: dict[str, Any]
) -> Kept:
    def effect() -> Any:
        room = Room(site.folder / "memory")
        room.root.mkdir(exist_ok=True)
        draft = _draft(site, piece, sealed, words)
        folder = room.root / site.engine / draft.id
        if not folder.exists():  # else a round that was killed here wrote it; the check below judges it
            seat = Seat(site.stock, site.worktree(f"distil-{draft.id}"), str(piece.tree), site.ref("distil"))
            seat.ready()
            try:
                add(room, seat.folder, draft, site.seal_fault)
            finally:
                seat.remove()
        item = load_entry(folder)
        with Checker(room, site.stock, seal_fault=site.seal_fault) as checker:
            finding = checker.check(folder)
        if finding.faults or item.entry.reproduces.tree != piece.tree:
            raise ExternalFailed(f"{item.name} does not reproduce.", "; ".join(finding.faults) or "Another tree.")
        return Kept(name=item.name, tree=str(piece.tree), status=item.entry.status).model_dump(mode="json")

    key = f"distil/{piece.proposal.id}-{str(piece.tree)[:8]}"
    return Kept.model_validate(site.durable.once(key, words, effect, site.stop))


def _draft(site: Site, piece: DirectionRecord, sealed: Reply | None, words: dict[str, Any]) -> Draft:
    evidence = _evidence(site, sealed)
    return Draft(
        id=piece.proposal.id,
        title=str(words.get("title") or piece.proposal.title)[:120],
        kind=str(words.get("kind") or ("kernel" if piece.proposal.kind == "kernel" else "engine")),
        engine=site.engine,
        vary=piece.vary,
        source=f"round {site.round_id}, direction {piece.proposal.id}",
        evidence=evidence,
        limits=_limits(piece, words),
        unverified=tuple(str(line)[:400] for line in words.get("unverified", ()) if str(line).strip()),
        dead_ends=tuple(DeadEnd.model_validate(end) for end in _dead_ends(words)),
        tried=tuple(Tried.model_validate(figure) for figure in words.get("tried", ())),
    )


def _dead_ends(words: dict[str, Any]) -> list[dict[str, str]]:
    ends = []
    for end in words.get("dead_ends", ()):
        tried, why = (end["tried"], end["why"]) if isinstance(end, dict) else (end, end)
        ends.append({"tried": str(tried)[:400], "why": str(why)[:400]})
    return ends


def _limits(piece: DirectionRecord, words: dict[str, Any]) -> str:
    limits = words.get("limits")
    lines = [str(limits)] if isinstance(limits, str) else [f"- {line}" for line in limits or ()]
    parts = [f"# Limits of {piece.proposal.id}", "", "## Limits", *(lines or ["None established beyond the evidence."])]
    parts += ["", "## Unverified", *(f"- {line}" for line in words.get("unverified", ()))]
    parts += ["", "## Dead ends", *(f"- {end['tried'].rstrip('.')}: {end['why']}" for end in _dead_ends(words))]
    return "\n".join(parts) + "\n"


def _evidence(site: Site, sealed: Reply | None) -> tuple[Path, ...]:
    if sealed is None:
        return ()
    return tuple(site.evidence / name for name, _ in sealed.artifacts)
