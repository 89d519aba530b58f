"""`specpilot pair-run`: is the candidate faster than stock, and by how much?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from specpilot_cli.commands._options import Out, Resume
from specpilot_cli.core import console
from specpilot_cli.core.errors import UsageFault

if TYPE_CHECKING:
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.artifacts.pair_run import Design, Estimate, PairRunBody

DEFAULT_DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"


Requests = Annotated[int | None, typer.Option("--requests", "-n", min=1, help="The first so many.", show_default="all")]
Repeats = Annotated[
    int | None, typer.Option("--repeats", min=1, help="Times the order is run.", show_default="1; else 2")
]
Placement = Annotated[
    str,
    typer.Option(
        "--placement",
        help="resident: both servers up; restart: a fresh server a block; swap: on two devices at once, exchanged.",
    ),
]
Devices = Annotated[
    str | None, typer.Option("--devices", help="With swap: the two GPUs (or CPUs).", show_default="0,1")
]
Batches = Annotated[
    int | None, typer.Option("--batches", min=1, help="Of each size and benchmark, at most.", show_default="all")
]
Starts = Annotated[
    int | None,
    typer.Option(
        "--starts",
        min=1,
        help="Fresh starts of both resident servers.",
        show_default="8, of 2 requests or more",
    ),
]
Concurrency = Annotated[
    list[int] | None, typer.Option("--concurrency", "-c", min=1, help="Batch size; repeatable.", show_default="1")
]
Vary = Annotated[list[str] | None, typer.Option("--vary", help="Key of /server_info that may differ; repeatable.")]
CandidateFlag = Annotated[
    list[str] | None, typer.Option("--candidate-flag", help="Engine flag for the candidate only; repeatable.")
]
NoiseFrom = Annotated[
    str | None, typer.Option("--noise-from", help="Noise artifact of the same design.", metavar="ARTIFACT")
]
ServerArgs = Annotated[
    list[str] | None, typer.Argument(help="Engine flags for both arms, after --.", show_default=False)
]


def pair_run(
    stock: Annotated[Path, typer.Argument(help="Stock worktree (arm A).")],
    candidate: Annotated[str | None, typer.Argument(help="Candidate worktree (arm B).")] = None,
    server_args: ServerArgs = None,
    deployment: Annotated[str, typer.Option("--deployment", "-d", help="Id or .toml file.")] = DEFAULT_DEPLOYMENT,
    split: Annotated[str, typer.Option("--split", help="develop or sealed.")] = "develop",
    requests: Requests = None,
    order: Annotated[str, typer.Option("--order", help="Blocks of A and B, in pairs.")] = "ABBA",
    repeats: Repeats = None,
    placement: Placement = "resident",
    devices: Devices = None,
    starts: Starts = None,
    concurrency: Concurrency = None,
    batches: Batches = None,
    vary: Vary = None,
    candidate_flag: CandidateFlag = None,
    noise: Annotated[bool, typer.Option("--noise", help="Stock against stock: the noise of this design.")] = False,
    ar: Annotated[bool, typer.Option("--ar", help="Stock against itself without speculation.")] = False,
    noise_from: NoiseFrom = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Order of the requests, and bootstrap.")] = 0,
    resume: Resume = None,
    out: Out = None,
) -> None:
    """Measure the candidate against stock on the same requests, interleaved, and say whether it is promoted.

    Example: specpilot pair-run wt/stock --noise -o noise.json
    && specpilot pair-run wt/stock wt/tree --noise-from noise.json -o pair.json
    """
    from specpilot_cli.artifacts.verdict import EXIT_CODE
    from specpilot_cli.commands._pair_run import Asked, carry_out

    if candidate is not None and candidate.startswith("-"):  # `pair-run STOCK --noise -- --flag`
        server_args, candidate = [candidate, *(server_args or [])], None
    _check_roles(candidate, noise, ar, noise_from)
    asked = Asked(
        stock=stock,
        candidate=Path(candidate) if candidate else stock,
        deployment=deployment,
        split=split,
        requests=requests,
        starts=starts,
        design=_design(order, repeats, placement, concurrency, seed).model_copy(
            update={"devices": _devices(placement, devices), "batches": batches}
        ),
        vary=tuple(vary or ()),
        server_args=tuple(server_args or ()),
        candidate_args=tuple(candidate_flag or ()),
        purpose="noise" if noise else "autoregressive" if ar else "gain",
        noise_from=noise_from,
        resume=resume,
        out=out,
    )
    body, writer = carry_out(asked)
    tell(body)
    _next(body, writer)
    if body.verdict is not None:
        raise typer.Exit(EXIT_CODE[body.verdict])


def _check_roles(candidate: str | None, noise: bool, ar: bool, noise_from: str | None) -> None:
    if sum((noise, ar, noise_from is not None)) > 1:
        raise UsageFault("--noise, --ar and --noise-from exclude each other.", "", "Give one of them.")
    if (candidate is None) != (noise or ar):
        raise UsageFault(
            "Name one worktree with --noise or --ar, two without.", "", "specpilot pair-run STOCK CANDIDATE"
        )


def _design(order: str, repeats: int | None, placement: str, concurrency: list[int] | None, seed: int) -> Design:
    from specpilot_cli.artifacts.pair_run import Design
    from specpilot_cli.artifacts.pair_run import Placement as Placements
    from specpilot_cli.controller.design import parse_order
    from specpilot_cli.controller.fresh import PROMPTS

    known = get_args(Placements)
    if placement not in known:
        raise UsageFault(f"There is no placement '{placement}'.", "", f"Known: {', '.join(known)}.")
    return Design(
        order=parse_order(order),
        repeats=repeats or (1 if placement == "resident" else 2),
        placement=cast("Placements", placement),
        concurrencies=tuple(dict.fromkeys(concurrency or [1])),
        warmup_requests=2,
        cooldown_s=2.0 if placement == "restart" else 0.0,
        fresh_prompts=PROMPTS,
        seed=seed,
    )


def _devices(placement: str, text: str | None) -> tuple[int, ...]:
    if placement != "swap":
        if text is not None:
            raise UsageFault("--devices is for --placement swap.", "", "CUDA_VISIBLE_DEVICES=1 chooses one GPU.")
        return ()
    parts = (text or "0,1").split(",")
    if len(set(parts)) != 2 or not all(part.isdigit() for part in parts):
        raise UsageFault(f"'{text}' are not two devices.", "", "Give two different indices, such as 0,1.")
    return tuple(int(part) for part in parts)


def tell(body: PairRunBody) -> None:
    """The result as a table and a line, on stderr."""
    from specpilot_cli.commands._tables import table

    rows = [
        (
            arm,
            f"{s.output_tokens_per_s:.1f}",
            f"{s.tpot_ms:.3f}",
            "AR" if s.tau is None else f"{s.tau:.2f}",
        )
        for arm, s in body.summary.items()
    ]
    if rows:
        columns = ("arm", "output tok/s", "TPOT ms", "accept length τ")
        table(f"{body.deployment.id}: {len(body.requests.ids)} {body.requests.split} requests", columns, rows)
    if body.gain:
        noise = "" if body.noise is None else f" · noise {body.noise:.2%}"
        bar = "" if body.bar is None else f" · bar {1 + body.bar:.4f}×"
        changed = f" · outputs changed on {body.outputs_changed} of {len(body.requests.ids)} requests"
        console.verdict(f"gain {_ratio(body.gain)}" + noise + bar + changed)
    for at in body.by_concurrency:
        console.verdict(f"at {at.concurrency} requests {_ratio(at.gain)}")
    if body.device_ratio:
        console.verdict(f"second device over the first {_ratio(body.device_ratio)}; not in the gain")
    for problem in body.problems:
        console.verdict(problem)
    console.verdict(f"{body.verdict.value if body.verdict else 'measured'}: {body.reason}")


def _ratio(found: Estimate) -> str:
    return f"{found.ratio:.4f}× [{found.low:.4f}, {found.high:.4f}]"


def _next(body: PairRunBody, writer: Writer) -> None:
    where = writer.path or "-"
    if body.purpose == "autoregressive":
        console.say(f"next: specpilot force-tokens --phase0 {where} --scorer STOCK")
    elif body.verdict is None:
        console.say(f"next: specpilot pair-run STOCK CANDIDATE --noise-from {where}")
    elif body.verdict.value == "PROMOTED":
        console.say(f"next: specpilot force-tokens {where} --scorer STOCK")
    elif body.verdict.value == "UNDERPOWERED":
        console.say("next: the same with more requests (--requests) or more --repeats, and noise of that design")
    elif body.verdict.value == "INFRA":
        console.say("next: the same command on a quiet machine; with --resume where the run was cut short")


def attach(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(pair_run)
