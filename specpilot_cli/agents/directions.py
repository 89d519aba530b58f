"""One direction: from its proposal to the controller's word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specpilot_cli.agents import openings, prompts
from specpilot_cli.agents.budget import BudgetSpent, is_question
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.conversation import Conversation, Ended
from specpilot_cli.agents.durable import DONE, STARTED
from specpilot_cli.agents.seat import Seat
from specpilot_cli.agents.site import Site
from specpilot_cli.agents.tools.toolbox import direction_tools, kernel_tools
from specpilot_cli.artifacts.round import DirectionRecord, Proposal, Reply, Result
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.memory.apply import plan as compose

_BY_VERDICT: dict[Verdict, Result] = {
    Verdict.PROMOTED: "promoted",
    Verdict.LOSSY: "lossy",
    Verdict.NO_EFFECT: "no effect",
    Verdict.UNDERPOWERED: "undecided",
    Verdict.INFRA: "undecided",
    Verdict.NOT_COMPARABLE: "undecided",
}

Asked = tuple[Question, Reply]


def agent_of(proposal: Proposal) -> str:
    """The agent's name, with which its keys begin."""
    return f"{'kernel' if proposal.kind == 'kernel' else 'direction'}/{proposal.id}"


def work_on(site: Site, proposal: Proposal, gain: float, device: str) -> DirectionRecord:
    """Carry a direction out, or find its result.

    A budget that ran out is no failure: what was measured until then is judged, and the record says what ran out. It is
    not kept, so that a round resumed with more goes on.

    Raises:
        ExternalFailed: the provider or the controller is gone for good; the round can be resumed.
    """
    agent = agent_of(proposal)
    key = f"{agent}/result"
    if site.durable.known(key):
        return DirectionRecord.model_validate(site.durable.result(key))
    try:
        ended = (
            _from_memory(site, proposal, device) if proposal.source == "memory" else _new(site, proposal, gain, device)
        )
    except BudgetSpent as spent:
        return _judge(proposal, gain, asked_by(site, agent), f"The budget ended it: {spent.what}.", Ended("budget", 0))
    record = _judge(proposal, gain, asked_by(site, agent), "", ended)
    kept = site.durable.once(key, None, lambda: record.model_dump(mode="json"))
    site.tell(agent, f"{record.result}: {record.reason}")
    return DirectionRecord.model_validate(kept)


def asked_by(site: Site, agent: str) -> list[Asked]:
    """Every answered question of an agent, in order."""
    asked = {e.key: e.data["asked"] for e in site.durable.journal.events if e.kind == STARTED}
    found = []
    for event in site.durable.journal.events:
        if event.kind == DONE and event.key.startswith(f"{agent}/") and is_question(event.key):
            question = Question.model_validate(site.durable.store.get_json(asked[event.key]))
            found.append((question, Reply.model_validate(site.durable.store.get_json(event.data["result"]))))
    return found


def _from_memory(site: Site, proposal: Proposal, device: str) -> Ended:
    agent = agent_of(proposal)
    name = f"{site.engine}/{proposal.entry}"

    def effect() -> Any:
        made = compose(site.room, (name,), site.stock)
        vary = sorted({key for step in made.composition.steps for key in step.item.entry.delta.vary})
        return {"tree": made.composition.tree, "reproduces": made.reproduces is not False, "vary": vary}

    made = site.durable.once(f"{agent}/apply", name, effect, site.stop)
    if not made["reproduces"]:
        return Ended("finished", 0, text=f"{name} does not reproduce its recorded tree.")
    site.keep(made["tree"], agent)
    questions = site.questions(agent, device)
    questions.inside(agent)
    questions.ask(Question(kind="promote", tree=made["tree"], vary=tuple(made["vary"])))
    return Ended("finished", 0)


def _new(site: Site, proposal: Proposal, gain: float, device: str) -> Ended:
    agent = agent_of(proposal)
    seat = Seat(site.stock, site.worktree(agent), site.stock_tree, site.ref(agent))
    seat.ready()
    questions = site.questions(agent, device)
    make = kernel_tools if proposal.kind == "kernel" else direction_tools
    tools = make(seat.folder, questions, site.runner, questions=site.settings.questions)
    role = "kernel" if proposal.kind == "kernel" else "direction"
    talk = Conversation(site.desk, agent, prompts.system(role), tools, finish="finish", seat=seat, questions=questions)
    opening = openings.direction(proposal, gain, site.ceiling, site.settings)
    ended = talk.run(opening, site.settings.turns)
    seat.remove()
    return ended


def _judge(proposal: Proposal, gain: float, asked: Sequence[Asked], why: str, ended: Ended) -> DirectionRecord:
    question, result, reason = _outcome(asked, ended)
    return DirectionRecord(
        proposal=proposal,
        expected_gain=gain,
        result=result,
        reason=f"{reason} {why}".strip(),
        tree=question.tree if question else None,
        vary=question.vary if question else (),
        flags=question.flags if question else (),
        asked=tuple(reply for _, reply in asked),
        report=str(ended.data.get("summary", ended.text))[:4000],
        dead_ends=tuple(str(end)[:400] for end in ended.data.get("dead_ends", ()))[:20],
    )


def _outcome(asked: Sequence[Asked], ended: Ended) -> tuple[Question | None, Result, str]:
    """The best promoted tree; else the controller's last word on what was submitted; else the last thing asked."""
    promoted = [a for a in asked if a[0].kind == "promote" and a[1].verdict == Verdict.PROMOTED]
    if promoted:
        question, reply = max(promoted, key=lambda a: a[1].figures.low if a[1].figures else 0.0)
        return question, "promoted", reply.reason
    submitted = [a for a in asked if a[0].kind == "promote"] or [a for a in asked if a[0].kind in ("screen", "force")]
    if not submitted:
        if ended.why == "budget":
            return None, "not tried", ""
        return None, "given up", f"Nothing was measured ({ended.why})."
    question, reply = submitted[-1]
    verdict = reply.verdict
    if question.kind == "screen" and verdict == Verdict.PROMOTED:
        return question, "given up", "A short run looked faster, but nothing was submitted."
    if verdict is None or verdict == Verdict.LOSSLESS:
        return question, "given up", reply.reason
    return question, _BY_VERDICT[verdict], reply.reason
