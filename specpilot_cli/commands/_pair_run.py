"""The body of `pair-run`: load and check every input, then make the writer, measure, and write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specpilot_cli.artifacts.base import Environment, Source, envelope_fields, this_environment
from specpilot_cli.artifacts.io import Loaded, Writer, load
from specpilot_cli.artifacts.pair_run import Arm, Design, PairRunArtifact, PairRunBody
from specpilot_cli.controller import contention, gpu, inputs
from specpilot_cli.controller.compare import boot_id
from specpilot_cli.controller.fresh import fresh_prompts
from specpilot_cli.controller.measure import Instruments
from specpilot_cli.controller.progress import progress
from specpilot_cli.controller.run import PairRun
from specpilot_cli.controller.sides import Side, edited
from specpilot_cli.core.digest import harness_sha256
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.core.preload import preload_gate
from specpilot_cli.deployment import Deployment, RequestSet, load_deployment, load_requests
from specpilot_cli.engine.base import Server
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.process import visible_gpus
from specpilot_cli.engine.registry import adapter

STARTS = 8
"""Of both resident servers, by default. The interval has STARTS - 1 degrees of freedom for how they happen to start;
with 4 its half width is a third larger than with 8 (docstring of `controller.stats`)."""


@dataclass(frozen=True)
class Asked:
    """The command line, parsed."""

    stock: Path
    candidate: Path
    deployment: str
    split: str
    requests: int | None
    starts: int | None
    design: Design
    vary: tuple[str, ...]
    server_args: tuple[str, ...]
    candidate_args: tuple[str, ...]
    purpose: Literal["gain", "noise", "autoregressive"]
    noise_from: str | None
    resume: str | None
    out: str | None


def with_starts(design: Design, asked: int | None, requests: int) -> Design:
    """The design with its number of starts: what was asked for, or as many as leave each at least two requests.

    Raises:
        UsageFault: more than there are requests for, or a placement that has its own.
    """
    if design.placement != "resident":
        if asked is not None:
            raise UsageFault(
                "--starts is for --placement resident.", f"With {design.placement} every block is a fresh server."
            )
        return design
    if asked is not None and asked > requests * design.repeats:
        raise UsageFault(f"{asked} starts for {requests * design.repeats} requests.", "", "Ask for fewer --starts.")
    chosen = asked or min(STARTS, max(1, requests // 2))
    return design.model_copy(update={"starts": chosen})


def _sides(asked: Asked, deployment: Deployment) -> dict[Arm, Side]:
    from specpilot_cli.worktrees.git import base_tree, tree_id

    flags = (*deployment.record.server_args, *asked.server_args)
    second = autoregressive(flags) if asked.purpose == "autoregressive" else flags
    stock = Side(asked.stock, tree_id(asked.stock), base_tree(asked.stock), flags)
    if asked.candidate == asked.stock:
        return {"stock": stock, "candidate": Side(stock.worktree, stock.tree, stock.base_tree, second)}
    tree, base = tree_id(asked.candidate), base_tree(asked.candidate)
    return {"stock": stock, "candidate": Side(asked.candidate, tree, base, (*flags, *asked.candidate_args))}


def _start(
    asked: Asked,
    deployment: Deployment,
    requests: RequestSet,
    sides: dict[Arm, Side],
    noise_source: str | None,
    gpus: tuple[str, ...],
) -> PairRunBody:
    design = with_starts(asked.design, asked.starts, len(requests.requests))
    return PairRunBody(
        deployment=deployment.record,
        requests=requests.record,
        design=design,
        purpose=asked.purpose,
        stock=sides["stock"].record(),
        candidate=sides["candidate"].record(),
        vary=asked.vary,
        server_args=asked.server_args,
        candidate_args=asked.candidate_args,
        boot=boot_id(),
        gpus=gpus,
        noise_source=noise_source,
        fresh=fresh_prompts(requests.requests, asked.design.fresh_prompts) if asked.purpose == "gain" else (),
    )


def _with_noise(body: PairRunBody, noise: Loaded[PairRunArtifact] | None, environment: Environment) -> PairRunBody:
    if body.purpose != "gain":
        return body
    if noise is None:
        raise UsageFault(
            "The noise of this design is not known.",
            "The bar is 1 % + 2 × the noise of stock against stock.",
            "Measure it with `specpilot pair-run STOCK --noise -o noise.json`, then give --noise-from noise.json.",
        )
    return body.model_copy(update={"noise": inputs.check_noise(noise.artifact, body, harness_sha256(), environment)})


def _resumed(
    asked: Asked, body: PairRunBody, requests: RequestSet, environment: Environment
) -> tuple[PairRunBody, Loaded[PairRunArtifact] | None]:
    if asked.resume is None:
        return body, None
    old: Loaded[PairRunArtifact] = load(asked.resume, "pair-run", allow_incomplete=True)
    there = old.artifact.body
    inputs.check_resume(old.artifact, body, requests, harness_sha256())
    inputs.check_machine(old.artifact, environment)
    kept = ("samples", "fresh", "fresh_samples", "outputs", "problems", "stock", "candidate")
    return body.model_copy(update={name: getattr(there, name) for name in kept}), old


def _watched(deployment: Deployment, design: Design) -> gpu.GpuReader:
    if deployment.record.gpu == "cpu":
        return gpu.NoGpu()
    return gpu.NvmlReader(visible_gpus(), design.devices)


def _at_once(body: PairRunBody) -> bool:
    """Whether both servers may start side by side: on one GPU only where neither sizes its cache by what is free."""
    flags = (*body.deployment.server_args, *body.server_args)
    return body.deployment.gpu == "cpu" or "--max-total-tokens" in flags


def carry_out(asked: Asked) -> tuple[PairRunBody, Writer]:
    """Check, measure, write.

    Raises:
        UsageFault, InputUnusable, EnvironmentUnusable: before anything is written.
    """
    deployment = load_deployment(asked.deployment)
    requests = load_requests(deployment.requests, asked.split, asked.requests)
    noise: Loaded[PairRunArtifact] | None = load(asked.noise_from, "pair-run") if asked.noise_from else None
    environment = this_environment()
    sides = _sides(asked, deployment)
    watched = _watched(deployment, asked.design)
    gpus = watched.uuids() if isinstance(watched, gpu.NvmlReader) else ()
    body = _start(asked, deployment, requests, sides, noise.source.sha256 if noise else None, gpus)
    body = _with_noise(body, noise, environment)
    body, old = _resumed(asked, body, requests, environment)
    instruments = Instruments(gpus=watched)
    if asked.resume == "-" and asked.out is None:
        raise InputUnusable("A run resumed from stdin needs a place.", "", "Give -o PATH.")
    writer = Writer(asked.out or asked.resume, "pair-run")
    read = [
        Source(name=f"{deployment.record.id}.toml", sha256=deployment.record.file_sha256),
        Source(name=f"{requests.record.name}.jsonl", sha256=requests.record.sha256),
        *([noise.source] if noise else []),
    ]
    envelope = envelope_fields(inputs=tuple(read), complete=False)
    if old:
        envelope |= {"created": old.artifact.created, "caveats": old.artifact.caveats}
    return _measure(PairRunArtifact(**envelope, body=body), requests, sides, instruments, writer), writer


def _measure(
    artifact: PairRunArtifact, requests: RequestSet, sides: dict[Arm, Side], instruments: Instruments, writer: Writer
) -> PairRunBody:
    logs = cache_dir() / "logs" / f"pair-run-{os.getpid()}"
    engine = adapter(artifact.body.deployment.engine)

    def launch(arm: Arm, device: int | None = None) -> Server:
        return engine.launch(sides[arm].worktree, sides[arm].server_args, log=logs / f"{arm}.log", device=device)

    def save(body: PairRunBody) -> None:
        writer.checkpoint(artifact.model_copy(update={"body": body}))

    preload_gate()
    with progress("pair-run") as tell:
        run = PairRun(
            artifact.body,
            requests.requests,
            launch,
            save=save,
            progress=tell,
            instruments=instruments,
            at_once=_at_once(artifact.body),
        )
        body, complete = run.run(lambda: edited(sides, artifact.tool.tree))
    caveats = artifact.caveats
    if contention.unobservable(body.samples):
        caveats = (*caveats, "contention could not be observed on this machine")
    writer.finish(artifact.model_copy(update={"body": body, "complete": complete, "caveats": caveats}))
    return body
