"""`specpilot agent`: rounds in which agents propose and the controller decides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

DEFAULT_DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"

CeilingFile = Annotated[str | None, typer.Argument(metavar="CEILING", help="Ceiling artifact, or - for stdin.")]
Stock = Annotated[Path | None, typer.Option("--stock", help="Worktree of the unpatched engine.")]
Deployment = Annotated[str, typer.Option("--deployment", "-d", help="Id or .toml file.")]
Provider = Annotated[
    str,
    typer.Option(
        "--provider", metavar="PROVIDER", help="anthropic, anthropic:MODEL, replay:FILE or command:PROGRAM ARGS."
    ),
]
BaseUrl = Annotated[
    str | None, typer.Option("--base-url", help="Of the API.", show_default="ANTHROPIC_BASE_URL, or the public one")
]
MemoryDir = Annotated[
    Path | None, typer.Option("--memory-dir", help="Memory room to read.", show_default="the one shipped")
]
History = Annotated[
    list[str] | None, typer.Option("--history", metavar="ROUND", help="Artifact of an earlier round; repeatable.")
]
MaxUsd = Annotated[float | None, typer.Option("--max-usd", min=0, help="Money for model calls.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=0, help="Tokens of all kinds.")]
MaxDeviceHours = Annotated[float | None, typer.Option("--max-device-hours", min=0, help="Time of measuring.")]
MaxHours = Annotated[float | None, typer.Option("--max-hours", min=0, help="By the clock, while the round runs.")]
PriceIn = Annotated[
    float | None, typer.Option("--price-in", min=0, help="USD per million input tokens, for unknown models.")
]
PriceOut = Annotated[
    float | None, typer.Option("--price-out", min=0, help="USD per million output tokens, for unknown models.")
]
Directions = Annotated[int, typer.Option("--directions", min=1, max=32, help="At most.")]
Turns = Annotated[int, typer.Option("--turns", min=1, max=1000, help="Answers of one agent, at most.")]
Questions = Annotated[int, typer.Option("--questions", min=1, max=200, help="To the controller, by one agent.")]
AnswerTokens = Annotated[int, typer.Option("--answer-tokens", min=256, help="Of one answer, at most.")]
Device = Annotated[
    list[str] | None,
    typer.Option("--device", help="Value of CUDA_VISIBLE_DEVICES, or cpu; one agent each.", show_default="one"),
]
Executor = Annotated[str, typer.Option("--executor", help="local, or ray: measure on a Ray cluster.")]
UnsafeShell = Annotated[
    bool, typer.Option("--unsafe-shell", help="Run agents' commands without bubblewrap. A caveat of the artifact.")
]


@group.callback()
def agent() -> None:
    """Let agents look for speedups in worktrees of the engine; a controller that they cannot touch promotes."""


@group.command("round")
def round_(
    ceiling: CeilingFile = None,
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the round: new or empty.")] = Path("round"),
    stock: Stock = None,
    deployment: Deployment = DEFAULT_DEPLOYMENT,
    provider: Provider = "anthropic",
    base_url: BaseUrl = None,
    memory_dir: MemoryDir = None,
    history: History = None,
    max_usd: MaxUsd = None,
    max_tokens: MaxTokens = None,
    max_device_hours: MaxDeviceHours = None,
    max_hours: MaxHours = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    directions: Directions = 4,
    turns: Turns = 40,
    questions: Questions = 12,
    answer_tokens: AnswerTokens = 16_000,
    device: Device = None,
    executor: Executor = "local",
    unsafe_shell: UnsafeShell = False,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="FOLDER", help="Go on with a round; only budgets may be given.")
    ] = None,
    out: Out = None,
) -> None:
    """Plan directions against the ceiling, work on them, promote what the gate passes, stack, seal, write entries.

    Ctrl-C finishes the step that runs, twice stops at once; --resume goes on either way, and after a kill. Exit 0: a
    tree was sealed; 1: nothing was promoted; 125: undecided, or a budget ran out first.

    Example: specpilot ceiling profile.json -o - | specpilot agent round - --stock wt/stock --max-usd 2
    """
    from specpilot_cli.artifacts.round import BudgetLimits
    from specpilot_cli.commands import _agent

    limits = BudgetLimits(usd=max_usd, tokens=max_tokens, device_hours=max_device_hours, hours=max_hours)
    prices = _agent.Prices(price_in, price_out)
    if resume is not None:
        asked = _agent.resumed(resume, ceiling, limits)
    else:
        asked = _agent.begun(
            folder,
            ceiling,
            stock,
            tuple(history or ()),
            limits,
            deployment=deployment,
            provider=provider,
            base_url=base_url,
            memory_dir=memory_dir,
            directions=directions,
            turns=turns,
            questions=questions,
            max_tokens=answer_tokens,
            devices=tuple(device or ("cpu",)),
            executor=executor,
            unsafe_shell=unsafe_shell,
        )
    raise typer.Exit(_agent.carry_out(asked, prices, out))


@group.command()
def plan(
    ceiling: CeilingFile = None,
    stock: Stock = None,
    deployment: Deployment = DEFAULT_DEPLOYMENT,
    provider: Provider = "anthropic",
    base_url: BaseUrl = None,
    memory_dir: MemoryDir = None,
    history: History = None,
    max_usd: MaxUsd = None,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    directions: Directions = 4,
) -> None:
    """Ask the master alone: directions with their expected gains, the best first. Nothing is run.

    Each line: `take` or `drop`, id, source, expected gain (ratio), title, and for `drop` the reason.

    Example: specpilot agent plan ceiling.json --stock wt/stock
    """
    from specpilot_cli.artifacts.round import BudgetLimits
    from specpilot_cli.commands import _agent

    limits = BudgetLimits(usd=max_usd)
    with _agent.scratch() as folder:
        asked = _agent.begun(
            folder,
            ceiling,
            stock,
            tuple(history or ()),
            limits,
            deployment=deployment,
            provider=provider,
            base_url=base_url,
            memory_dir=memory_dir,
            directions=directions,
        )
        for line in _agent.plan_alone(asked, _agent.Prices(price_in, price_out)):
            console.emit(line)


@group.command()
def status(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a round.")] = Path("round")) -> None:
    """Say where a round stands, running or not.

    Each line: agent, state, answers, tool calls, questions to the controller, seconds of measuring.

    Example: watch specpilot agent status runs/round-1
    """
    from specpilot_cli.agents.journal import read
    from specpilot_cli.agents.status import status as lines
    from specpilot_cli.agents.store import Store
    from specpilot_cli.commands._agent import runs

    alive = runs(folder)
    found, wall_s = lines(list(read(folder / "journal.jsonl")), Store(folder / "objects"), alive=alive)
    for line in found:
        figures = (line.turns, line.tools, line.questions, f"{line.device_s:.0f}")
        console.emit("\t".join((line.who, line.state, *map(str, figures))))
    console.verdict(f"{folder}: {'running' if alive else 'not running'}, {wall_s:.0f} s by the clock so far.")


@group.command()
def log(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a round.")] = Path("round"),
    agent_: Annotated[str | None, typer.Option("--agent", help="Only this one, such as direction/tree.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Whole texts.")] = False,
) -> None:
    """Print what the agents said, did, and were told.

    Example: specpilot agent log runs/round-1 --agent direction/tree | less
    """
    from specpilot_cli.agents.journal import read
    from specpilot_cli.agents.store import Store
    from specpilot_cli.agents.transcript import transcript

    for line in transcript(read(folder / "journal.jsonl"), Store(folder / "objects"), agent_, full=full):
        console.emit(line)


@group.command()
def record(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of a round.")],
    to: Annotated[Path, typer.Option("--to", help="File to write.")] = Path("recording.jsonl"),
) -> None:
    """Write the model's answers of a round to a file that --provider replay:FILE plays again, without a key.

    Example: specpilot agent record runs/round-1 --to round-1.jsonl
    """
    from specpilot_cli.commands._agent import write_recording

    count = write_recording(folder, to)
    console.verdict(f"{count} answers of {folder}.")
    console.emit(str(to))


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="agent")
