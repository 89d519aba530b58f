"""What may be put together: a noise run with the run that uses it, a killed run with the one that goes on from it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specpilot_cli.artifacts.base import Environment
from specpilot_cli.artifacts.pair_run import Design, PairRunArtifact, PairRunBody
from specpilot_cli.controller.compare import boot_id
from specpilot_cli.controller.fresh import as_requests
from specpilot_cli.controller.schedule import pair_of, schedule
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable
from specpilot_cli.deployment import RequestSet


def _shape(design: Design) -> Design:
    """The design without its seed, which only orders the batches, and its starts, which `check_noise` accounts for."""
    return design.model_copy(update={"seed": 0, "starts": 1})


def _nested(one: Sequence[str], other: Sequence[str]) -> bool:
    return set(one) <= set(other) or set(other) <= set(one)


def _noise_mismatches(noise: PairRunArtifact, body: PairRunBody, harness: str, environment: Environment) -> list[str]:
    there, found = noise.body, []
    if there.purpose != "noise" or there.verdict is not None or there.noise is None:
        found.append(f"it is no finished noise run ({there.verdict.value if there.verdict else there.purpose})")
    if there.deployment != body.deployment:
        found.append("another deployment")
    if there.server_args != body.server_args:
        found.append("other engine flags")
    if there.requests.sha256 != body.requests.sha256:
        found.append("another request set")
    elif there.requests.split == body.requests.split and not _nested(there.requests.ids, body.requests.ids):
        found.append("other requests")
    if _shape(there.design) != _shape(body.design):
        found.append("another design")
    if there.stock.tree != body.stock.tree:
        found.append("another stock tree")
    if noise.tool.tree != harness:
        found.append("another harness (SpecPilot's own sources)")
    if noise.environment != environment:
        found.append("another machine")
    elif there.gpus != body.gpus:
        found.append("another GPU")
    if noise.caveats:
        found.append("it has caveats")
    return found


def check_noise(noise: PairRunArtifact, body: PairRunBody, harness: str, environment: Environment) -> float:
    """The noise that a stock-against-stock run found, if it is of the same kind as `body`.

    Another seed is allowed, another split of the same file (sealed requests need not be read for the noise), and more
    or fewer requests of the same split or starts of the servers. Its variance is a part a / requests + b / starts, so
    noise of more of either than this run has is scaled by sqrt(max(requests_noise / requests_run, starts_noise /
    starts_run)); noise of fewer is taken as it is. Both err on the safe side.

    Raises:
        InputUnusable: it is not; the message says in what.
    """
    found = _noise_mismatches(noise, body, harness, environment)
    if found or noise.body.noise is None:
        raise InputUnusable(
            "The noise artifact does not fit this run.", "; ".join(found), "Make one: specpilot pair-run STOCK --noise"
        )
    requests = len(noise.body.requests.ids) / len(body.requests.ids)
    return noise.body.noise * math.sqrt(max(1.0, requests, noise.body.design.starts / body.design.starts))


def check_resume(old: PairRunArtifact, body: PairRunBody, requests: RequestSet, harness: str) -> None:
    """Whether `old` is an unfinished run of exactly what `body` asks for.

    Raises:
        InputUnusable: it is complete, of something else, or holds samples that its own design does not have.
    """
    there = old.body
    if old.complete:
        raise InputUnusable("The run is complete.", "There is nothing to resume.")
    fields = (
        "gpus",
        "deployment",
        "requests",
        "design",
        "purpose",
        "vary",
        "noise_source",
        "server_args",
        "candidate_args",
    )
    found = [name for name in fields if getattr(there, name) != getattr(body, name)]
    found += [
        f"{arm} {name}"
        for arm in ("stock", "candidate")
        for name in ("tree", "base_tree")
        if getattr(getattr(there, arm), name) != getattr(getattr(body, arm), name)
    ]
    if old.tool.tree != harness:
        found.append("harness (SpecPilot's own sources)")
    if found:
        raise InputUnusable("Another run was killed there.", "These differ: " + ", ".join(found) + ".")
    steps = schedule(there.design, (*requests.requests, *as_requests(there.fresh)))
    planned = {(s.pair, s.block, s.arm, r.id) for s in steps for r in s.requests}
    taken = [(pair_of(s), s.block, s.arm, s.request_id) for s in (*there.samples, *there.fresh_samples)]
    if len(set(taken)) != len(taken) or not planned.issuperset(taken):
        raise InputUnusable("The artifact holds samples that its design does not have.")


def check_machine(old: PairRunArtifact, environment: Environment) -> None:
    """Whether timings of now may join those of the killed run.

    Raises:
        EnvironmentUnusable: another machine, other software or another boot: NOT_COMPARABLE (the file is left alone).
    """
    found = [name for name in Environment.model_fields if getattr(old.environment, name) != getattr(environment, name)]
    found += ["boot"] if old.body.boot != boot_id() else []
    if found:
        raise EnvironmentUnusable(
            "NOT_COMPARABLE: the killed run was measured elsewhere.",
            "These differ: " + ", ".join(found) + ".",
            "Resume it there, or start a new run.",
        )
