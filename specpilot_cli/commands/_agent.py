"""The body of `agent round` and `agent plan`: load and check, hold the key and the controllers, run, write."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from specpilot_cli.agents import setup
from specpilot_cli.agents.budget import BudgetSpent
from specpilot_cli.agents.provider import Provider, Usage
from specpilot_cli.agents.round import Order, StopAsked
from specpilot_cli.artifacts.base import envelope_fields
from specpilot_cli.artifacts.io import Loaded, Writer, load
from specpilot_cli.artifacts.round import BudgetLimits, RoundArtifact, RoundBody, RoundSettings
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core import console
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, SpecPilotError, UsageFault
from specpilot_cli.core.exit_codes import ExitCode


class Undecided(SpecPilotError):
    """A budget ran out before there was anything to say."""

    exit_code = ExitCode.INDETERMINATE


@dataclass(frozen=True)
class Prices:
    """USD per million tokens, for a model that the price list does not know."""

    input: float | None
    output: float | None

    def cost(self, model: str, usage: Usage) -> float | None:
        """USD; None where nothing is known."""
        from specpilot_cli.agents.prices import cost_usd, own_price, price_of

        own = own_price(self.input, self.output) if self.input is not None and self.output is not None else None
        return None if price_of(model, usage, own) is None else cost_usd(model, usage, own)


@dataclass(frozen=True)
class Asked:
    """A round's folder and what it was begun with."""

    folder: Path
    begun: setup.Begun


def begun(
    folder: Path,
    ceiling: str | None,
    stock: Path | None,
    history: tuple[str, ...],
    limits: BudgetLimits,
    *,
    base_url: str | None,
    memory_dir: Path | None,
    provider: str,
    **settings: Any,
) -> Asked:
    """Make the folder of a new round.

    Raises:
        UsageFault: no ceiling or no stock. EnvironmentUnusable: the folder is not empty.
    """
    if ceiling is None or stock is None:
        raise UsageFault(
            "A round needs a ceiling and a stock worktree.",
            "",
            "specpilot agent round ceiling.json --stock wt/stock; or --resume FOLDER",
        )
    fields = {
        "stock": str(stock.resolve()),
        "memory_dir": str(memory_dir.resolve()) if memory_dir else None,
        "provider": _absolute(provider),
        "model": _model(provider),
        **settings,
    }
    made = RoundSettings.model_validate(fields)
    return Asked(folder, setup.begin(folder, made, limits, ceiling, history, base_url))


def resumed(folder: Path, ceiling: str | None, limits: BudgetLimits) -> Asked:
    """An existing round, with the budgets that are given anew.

    Raises:
        UsageFault: it is given a ceiling. InputUnusable: no round, or a changed one.
    """
    if ceiling is not None:
        raise UsageFault("A resumed round has its ceiling.", "", f"specpilot agent round --resume {folder}")
    found = setup.with_limits(setup.reopen(folder), limits)
    setup.keep(folder, found)
    return Asked(folder, found)


def _absolute(provider: str) -> str:
    kind, _, rest = provider.partition(":")
    return f"replay:{Path(rest).resolve()}" if kind == "replay" and rest else provider


def _model(provider: str) -> str:
    from specpilot_cli.agents.providers.anthropic import DEFAULT_MODEL

    kind, _, rest = provider.partition(":")
    return (rest or DEFAULT_MODEL) if kind == "anthropic" else kind


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for a round that is only planned."""
    with tempfile.TemporaryDirectory(prefix="specpilot-plan-") as name:
        yield Path(name) / "round"


def runs(folder: Path) -> bool:
    """Whether a process works on the round."""
    from specpilot_cli.worktrees.locks import LockHeld, hold

    if not (folder / "journal.jsonl").exists():
        raise InputUnusable(f"{folder}: holds no round.", "", "Name the folder of a round.")
    try:
        with hold(folder / "journal.lock"):
            return False
    except LockHeld:
        return True


def write_recording(folder: Path, to: Path) -> int:
    """Recording of a round; the number of its answers."""
    from specpilot_cli.agents.durable import Durable
    from specpilot_cli.agents.journal import Journal
    from specpilot_cli.agents.providers.replay import record
    from specpilot_cli.agents.store import Store

    if not (folder / "journal.jsonl").exists():
        raise InputUnusable(f"{folder}: holds no round.", "", "Name the folder of a round.")
    with Journal(folder / "journal.jsonl") as journal:
        return record(Durable(journal, Store(folder / "objects")), to)


class Interrupts:
    """The first Ctrl-C lets the running step end, the second ends the process; the journal holds either way."""

    def __init__(self) -> None:
        self._asked = False

    def __enter__(self) -> Interrupts:
        self._before = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            os._exit(ExitCode.INTERRUPTED)  # controllers and what they started die with this process
        self._asked = True
        console.verdict("Stopping after this step. Once more stops at once; --resume goes on either way.")

    def check(self) -> None:
        """Raises where somebody asked."""
        if self._asked:
            raise StopAsked


def _tell(agent: str, line: str) -> None:
    console.say(f"{agent:<22} {line}")


def carry_out(asked: Asked, prices: Prices, out: str | None) -> ExitCode:
    """Run or resume the round, and write its artifact after every step.

    Raises:
        what `agents.round.run` raises, and what is unusable before it begins.
    """
    from specpilot_cli.agents.round import run

    folder = asked.folder
    writer = Writer(out or str(folder / "round.json"), "round")
    loaded = load(str(setup.ceiling_file(folder)), "ceiling")
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        order, saver = _order(asked, prices, loaded, stack, interrupts, writer)
        try:
            body = run(order)
        except StopAsked:
            console.verdict(f"Stopped. Go on with: specpilot agent round --resume {folder}")
            return ExitCode.INTERRUPTED
    _say_result(body, folder)
    if saver.last is not None:
        writer.finish(saver.last)
    return _exit_code(body)


class Saver:
    """Rewrites the artifact after every step.

    Args:
        warnings: of the provider; it may still grow.
    """

    def __init__(self, begun: setup.Begun, ceiling: Loaded[Any], writer: Writer | None, warnings: list[str]) -> None:
        self._inputs, self._writer, self._warnings = (ceiling.source,), writer, warnings
        self._caveats = list(ceiling.artifact.caveats)
        if begun.settings.unsafe_shell:
            self._caveats.append("commands of agents ran without a sandbox (--unsafe-shell)")
        if begun.settings.provider.startswith("command:"):
            self._caveats.append("an external agent worked with the user's rights (--provider command:)")
        self.last: RoundArtifact | None = None

    def save(self, body: RoundBody, complete: bool) -> None:
        """Keep what is known."""
        caveats = (*self._caveats, *self._warnings)
        fields = envelope_fields(inputs=self._inputs, caveats=caveats, complete=complete)
        self.last = RoundArtifact(**fields, body=body)
        if self._writer is not None:
            self._writer.checkpoint(self.last)


def _order(
    asked: Asked,
    prices: Prices,
    loaded: Loaded[Any],
    stack: ExitStack,
    interrupts: Interrupts,
    writer: Writer | None,
) -> tuple[Order, Saver]:
    from specpilot_cli.agents.providers.secret import take_key
    from specpilot_cli.agents.shell import Runner
    from specpilot_cli.commands._memory_seals import seal_fault
    from specpilot_cli.deployment.load import load_deployment
    from specpilot_cli.memory.entry import load_entry
    from specpilot_cli.memory.room import open_room
    from specpilot_cli.memory.select import select
    from specpilot_cli.worktrees.git import base_tree, tree_id

    key = take_key(os.environ)  # before anything is started that could inherit it
    folder, begun = asked.folder.resolve(), asked.begun
    settings = begun.settings
    stock = Path(settings.stock)
    tree = tree_id(stock)
    if tree != base_tree(stock):
        raise EnvironmentUnusable(f"{stock}: is not stock.", f"It is tree {tree}.", "specpilot stock init DIR")
    record = load_deployment(settings.deployment).record
    ceiling = loaded.artifact.body
    if ceiling.deployment_id != record.id:
        raise InputUnusable(f"The ceiling is of {ceiling.deployment_id}.", f"The deployment is {record.id}.")
    room = open_room(Path(settings.memory_dir) if settings.memory_dir else None)
    taken, left = select([load_entry(item) for item in room.folders()], record, ceiling)
    runner = Runner(unsafe=settings.unsafe_shell)
    if runner.off:
        console.say(f"Agents can run no commands: {runner.off}")
    provider = _provider(begun, key)
    stack.callback(getattr(provider, "close", lambda: None))
    history = tuple(
        load(str(setup.history_file(folder, number)), "round", allow_incomplete=True).artifact.body
        for number in range(len(begun.history))
    )
    saver = Saver(begun, loaded, writer, getattr(provider, "warnings", []))
    order = Order(
        folder=folder,
        round_id=begun.round_id,
        stock=stock,
        stock_tree=tree,
        engine=record.engine,
        ceiling=ceiling,
        ceiling_sha256=begun.ceiling,
        settings=settings,
        limits=begun.limits,
        room=room,
        candidates=taken,
        left_out=left,
        history=history,
        provider=provider,
        paid=not settings.provider.startswith(("replay:", "command:")),
        cost=prices.cost,
        gates=_gates(folder, begun, tree, stack),
        runner=runner,
        evidence=_controller_folder(folder, settings.devices[0]),
        seal_fault=seal_fault(None),
        tell=_tell,
        stop=interrupts.check,
        save=saver.save,
    )
    return order, saver


def _provider(begun: setup.Begun, key: Any) -> Provider:
    from specpilot_cli.agents.external import run_external
    from specpilot_cli.agents.providers.make import Settings, make_provider

    settings = Settings(round_id=begun.round_id, key=key, base_url=begun.base_url, runner=run_external)
    return make_provider(begun.settings.provider, settings)


def _controller_folder(folder: Path, device: str) -> Path:
    return folder / "controller" / device.replace("/", "-")


def _gates(folder: Path, begun: setup.Begun, tree: str, stack: ExitStack) -> Mapping[str, Any]:
    from specpilot_cli.agents.controller.client import Controller
    from specpilot_cli.agents.controller.settings import Settings
    from specpilot_cli.agents.executor import executor_of
    from specpilot_cli.agents.remote_gate import RemoteGate
    from specpilot_cli.agents.seat import keep

    settings = begun.settings
    gates: dict[str, Any] = {}
    stock = Path(settings.stock)
    remote = stack.enter_context(executor_of("ray")) if settings.executor == "ray" else None
    for device in settings.devices:
        environment = {} if device == "cpu" or remote else {"CUDA_VISIBLE_DEVICES": device}
        asked = Settings(stock=settings.stock, base_tree=tree, deployment=settings.deployment, environment=environment)
        place = _controller_folder(folder, device)
        if remote is None:
            gates[device] = stack.enter_context(Controller(place, asked))
            continue
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        wanted = asked.model_dump(mode="json", exclude={"stock"})
        gates[device] = RemoteGate(
            remote, device, begun.round_id, stock, wanted, place, lambda t: keep(stock, t, f"{begun.round_id}/sent")
        )
    return gates


def plan_alone(asked: Asked, prices: Prices) -> Iterator[str]:
    """The master's directions as lines."""
    from specpilot_cli.agents.journal import Journal
    from specpilot_cli.agents.round import Round

    loaded = load(str(setup.ceiling_file(asked.folder)), "ceiling")
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        order, _ = _order(asked, prices, loaded, stack, interrupts, None)
        with Journal(order.folder / "journal.jsonl") as journal:
            made = Round(order, journal)
            try:
                taken = made.plan()
            except BudgetSpent as spent:
                raise Undecided(f"No plan: {spent.what}.") from None
            for proposal, gain in taken:
                yield "\t".join(("take", proposal.id, proposal.source, f"{gain:+.3f}", proposal.title))
            for out in made.progress.dropped:
                where = (out.proposal.id, out.proposal.source, f"{out.expected_gain:+.3f}", out.proposal.title)
                yield "\t".join(("drop", *where, out.why))


def _say_result(body: RoundBody, folder: Path) -> None:
    from specpilot_cli.commands._tables import table

    rows = []
    for record in body.directions:
        figures = next((reply.figures for reply in reversed(record.asked) if reply.figures), None)
        gain = f"{figures.ratio:.3f} [{figures.low:.3f}, {figures.high:.3f}]" if figures else "-"
        rows.append((record.proposal.id, record.proposal.source, f"{record.expected_gain:+.1%}", gain, record.result))
    table(f"round {body.round_id}", ("direction", "source", "expected", "measured", "result"), rows)
    for record in body.directions:
        console.verdict(f"{record.proposal.id}: {record.reason}")
    if body.final is not None:
        console.verdict(f"On sealed requests: {body.final.verdict and body.final.verdict.value}: {body.final.reason}")
    for kept in body.entries:
        console.verdict(f"entry {kept.name} ({kept.status}), tree {kept.tree}, in {folder / 'memory'}")
    spent = body.spent
    money = "price unknown" if spent.usd is None else f"{spent.usd:.2f} USD"
    tokens = sum(spent.usage.model_dump().values())
    times = f"{spent.device_s:.0f} s measured, {spent.wall_s:.0f} s in all"
    console.verdict(f"{spent.calls} answers, {tokens} tokens, {money}; {times}.")
    if body.stopped_by:
        console.verdict(f"Not finished: {body.stopped_by}. Go on with: specpilot agent round --resume {folder}")


def _exit_code(body: RoundBody) -> ExitCode:
    if body.final is not None and body.final.verdict == Verdict.PROMOTED:
        return ExitCode.OK
    undecided = {"undecided", "not tried"} & {record.result for record in body.directions}
    if body.stopped_by or undecided or body.final is not None:
        return ExitCode.INDETERMINATE
    return ExitCode.NEGATIVE
