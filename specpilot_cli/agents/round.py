"""The round: plan, work on directions, stack, seal, distil. Run again after a kill, it goes on where it was."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_cli.agents import openings, prompts
from specpilot_cli.agents.budget import OPENED, BudgetSpent, Cost, Meter
from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.conversation import Conversation, Desk
from specpilot_cli.agents.directions import work_on
from specpilot_cli.agents.distil import distil
from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.integrate import Stack, stack
from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.plan import Estimate, Propose, choose
from specpilot_cli.agents.provider import Provider
from specpilot_cli.agents.providers import sink as sinks
from specpilot_cli.agents.site import Site
from specpilot_cli.agents.store import Store
from specpilot_cli.agents.uses import uses
from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import (
    BudgetLimits,
    DirectionRecord,
    Dropped,
    Kept,
    Proposal,
    Reply,
    RoundBody,
    RoundSettings,
)
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.memory.room import Room
from specpilot_cli.memory.select import Candidate, LeftOut

MASTER_TURNS = 12


class StopAsked(Exception):
    """A person asked the round to stop: nothing new begins."""


@dataclass(frozen=True)
class Order:
    """What a round is given."""

    folder: Path
    round_id: str
    stock: Path
    stock_tree: str
    engine: str
    ceiling: CeilingBody
    ceiling_sha256: str
    settings: RoundSettings
    limits: BudgetLimits
    room: Room
    candidates: tuple[Candidate, ...]
    left_out: tuple[LeftOut, ...]
    history: tuple[RoundBody, ...]
    provider: Provider
    paid: bool
    """False for a replay: its tokens cost nothing."""
    cost: Cost
    gates: Mapping[str, Gate]
    runner: Any
    evidence: Path
    seal_fault: Callable[[Path], str | None]
    tell: Callable[[str, str], None]
    stop: Callable[[], None]
    save: Callable[[RoundBody, bool], None]
    """Called with what is known so far, and whether that is all."""


@dataclass
class Progress:
    """What a round has so far."""

    records: list[DirectionRecord] = field(default_factory=list)
    dropped: tuple[Dropped, ...] = ()
    stack: Stack | None = None
    final: Reply | None = None
    entries: tuple[Kept, ...] = ()
    stopped_by: str | None = None


class Round:
    """One round over an open journal."""

    def __init__(self, order: Order, journal: Journal) -> None:
        self.order, self.journal = order, journal
        durable = Durable(journal, Store(order.folder / "objects"))
        meter = Meter(order.limits, order.cost, calls_are_paid=order.paid)
        streams, model = order.folder / "streams", order.settings.model
        broken = ((model, sinks.lost(path)) for path in sorted(streams.rglob("*.partial-*")))
        meter.restore(journal.events, durable.store, broken)
        self._check(durable)
        journal.append(OPENED, limits=order.limits.model_dump(mode="json"))
        settings = order.settings
        desk = Desk(
            durable=durable,
            provider=order.provider,
            meter=meter,
            model=settings.model,
            max_tokens=settings.max_tokens,
            streams=streams,
            tell=order.tell,
            stop=order.stop,
        )
        self.site = Site(
            folder=order.folder,
            round_id=order.round_id,
            stock=order.stock,
            stock_tree=order.stock_tree,
            engine=order.engine,
            ceiling=order.ceiling,
            settings=settings,
            room=order.room,
            desk=desk,
            gates=order.gates,
            runner=order.runner,
            evidence=order.evidence,
            seal_fault=order.seal_fault,
        )
        self.progress = Progress()

    def _check(self, durable: Durable) -> None:
        """The first effect of all: a round that is resumed must be the one that was begun."""
        order = self.order
        asked = {
            "settings": order.settings.model_dump(mode="json"),
            "stock_tree": order.stock_tree,
            "ceiling": order.ceiling_sha256,
            "prompts": [file.model_dump(mode="json") for file in prompts.files()],
        }
        durable.once("round", asked, lambda: order.round_id)

    def run(self) -> RoundBody:
        """Everything, saved after every step.

        Raises:
            StopAsked: after the step that ran when a person asked for it. ExternalFailed: the provider or the
                controller is gone; what was found is saved, and the round can be resumed.
        """
        try:
            self._carry_out()
        except StopAsked:
            self.progress.stopped_by = "a person stopped it"
            raise
        finally:
            if self.progress.stopped_by is None and not self._complete:
                self.progress.stopped_by = "it was cut off before its end"
            self.order.save(self.body(), self._complete)
        return self.body()

    _complete = False

    def _carry_out(self) -> None:
        now, device = self.progress, self.order.settings.devices[0]
        try:
            directions = self.plan()
        except BudgetSpent as spent:
            now.stopped_by = spent.what
            return
        self._directions(directions)
        now.stack = stack(self.site, now.records, device)
        if now.stack is not None:
            now.final = self._final(now.stack, device)
        now.entries = distil(self.site, now.records, now.stack, now.final)
        self._complete = now.stopped_by is None

    def plan(self) -> tuple[tuple[Proposal, float], ...]:
        """The directions to try with their expected gains, the best first."""
        order, site = self.order, self.site
        entries = {candidate.item.entry.id: candidate.worth for candidate in order.candidates}
        tools = (Estimate(order.ceiling), Propose(order.ceiling, entries))
        talk = Conversation(site.desk, "master", prompts.system("master"), tools, finish="propose")
        opening = openings.master(order.ceiling, order.candidates, order.left_out, order.history, order.settings)
        ended = talk.run(opening, MASTER_TURNS)
        proposals = tuple(Proposal.model_validate(p) for p in ended.data.get("directions", ()))
        if not proposals:
            raise ExternalFailed("The master proposed nothing.", f"{ended.why}: {ended.text[:200]}", "See: agent log")
        taken, self.progress.dropped = choose(proposals, order.ceiling, entries, order.settings)
        for proposal, gain in taken:
            site.tell("master", f"{proposal.id}: {proposal.title} ({proposal.source}), expected {gain:+.1%}")
        self._save()
        return taken

    def _directions(self, directions: Sequence[tuple[Proposal, float]]) -> None:
        """Every device takes the next direction when it is free."""
        waiting: queue.SimpleQueue[tuple[int, Proposal, float]] = queue.SimpleQueue()
        for number, (proposal, gain) in enumerate(directions):
            waiting.put((number, proposal, gain))
        found: dict[int, DirectionRecord] = {}

        def work(device: str) -> None:
            while not waiting.empty():
                try:
                    number, proposal, gain = waiting.get_nowait()
                except queue.Empty:
                    return
                found[number] = work_on(self.site, proposal, gain, device)
                self.progress.records = [found[n] for n in sorted(found)]
                self._save()

        devices = self.order.settings.devices
        if len(devices) == 1:
            work(devices[0])
        else:
            with ThreadPoolExecutor(len(devices), thread_name_prefix="direction") as pool:
                list(pool.map(work, devices))
        short = [record for record in self.progress.records if "The budget ended it" in record.reason]
        if short:
            self.progress.stopped_by = short[0].reason

    def _final(self, made: Stack, device: str) -> Reply | None:
        questions = self.site.questions("final", device)
        questions.inside(f"final/{made.tree[:16]}")
        try:
            return questions.ask(Question(kind="final", tree=made.tree, vary=made.vary, flags=made.flags))
        except BudgetSpent as spent:
            self.progress.stopped_by = f"before the sealed measurement: {spent.what}"
            return None

    def _save(self) -> None:
        self.order.save(self.body(), False)

    def body(self) -> RoundBody:
        """What is known now."""
        now, order, site = self.progress, self.order, self.site
        return RoundBody(
            round_id=site.round_id,
            settings=order.settings,
            stock_tree=order.stock_tree,
            prompts=prompts.files(),
            directions=tuple(now.records),
            dropped=now.dropped,
            stack=now.stack.ids if now.stack else (),
            final_tree=now.stack.tree if now.stack else None,
            final=now.final,
            entries=now.entries,
            agents=uses(self.journal.events, site.durable.store, order.cost if order.paid else lambda *_: 0.0),
            limits=order.limits,
            spent=site.desk.meter.spent(),
            stopped_by=now.stopped_by,
            journal_events=len(self.journal.events),
        )


def run(order: Order) -> RoundBody:
    """Begin or resume the round in `order.folder`.

    Raises:
        StopAsked, ExternalFailed: see `Round.run`. EnvironmentUnusable: another process runs it.
        InputUnusable: the folder holds another round.
    """
    with Journal(order.folder / "journal.jsonl") as journal:
        return Round(order, journal).run()
