"""AR outputs for Phase 0: from a pair-run that has an AR arm, or from the stock engine without its drafter."""

from __future__ import annotations

import os
from pathlib import Path

from specpilot_cli.artifacts.pair_run import Arm, PairRunBody
from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.registry import adapter
from specpilot_cli.forcing.outputs import by_request

ArOutputs = dict[str, tuple[int, ...]]
"""Request id -> output ids."""


def _speculates(pair: PairRunBody) -> dict[Arm, bool]:
    found: dict[Arm, bool] = {
        "stock": bool(pair.stock.info.get("speculative_algorithm")),
        "candidate": bool(pair.candidate.info.get("speculative_algorithm")),
    }
    return found


def speculative_arm(pair: PairRunBody) -> Arm:
    """The arm that is stock with its drafter: `stock`, unless only the candidate speculates.

    Raises:
        InputUnusable: no arm speculates, or the arm's tree is not stock.
    """
    speculates = _speculates(pair)
    if not any(speculates.values()):
        raise InputUnusable("Phase 0 compares stock with AR.", "No arm of this pair-run speculates.")
    arm: Arm = "stock" if speculates["stock"] else "candidate"
    server = pair.stock if arm == "stock" else pair.candidate
    if server.tree != server.base_tree:
        raise InputUnusable("Phase 0 compares stock with AR.", f"The arm that speculates ({arm}) is a changed tree.")
    return arm


def ar_outputs(worktree: Path, pair: PairRunBody) -> ArOutputs:
    """AR's output of every request, as long as stock's.

    Raises:
        InputUnusable: see `speculative_arm`, or the AR arm is not deterministic.
        ExternalFailed: the engine failed.
    """
    speculates, outputs = _speculates(pair), by_request(pair)
    arm = speculative_arm(pair)
    other: Arm = "candidate" if arm == "stock" else "stock"
    if speculates[other]:
        return _generated(worktree, pair)
    if any(len(arms[other]) > 1 for arms in outputs.values()):
        raise InputUnusable("Phase 0 needs one AR output a request.", "The AR arm gave several.")
    return {name: next(iter(arms[other].values())).output_ids for name, arms in outputs.items()}


def _generated(worktree: Path, pair: PairRunBody) -> ArOutputs:
    """By the engine of `worktree`, without its drafter, otherwise configured as in the pair-run."""
    engine, arm = adapter(pair.deployment.engine), speculative_arm(pair)
    args = autoregressive((*pair.deployment.server_args, *pair.server_args))
    server = engine.launch(worktree, args, log=cache_dir() / "logs" / f"ar-{os.getpid()}.log")
    try:
        if server.info().get("speculative_algorithm"):
            raise ExternalFailed("The engine speculates although no drafter was asked for.")
        found: ArOutputs = {}
        for name, arms in by_request(pair).items():
            longest = max(arms[arm].values(), key=lambda output: len(output.output_ids))
            found[name] = server.generate([longest.input_ids], len(longest.output_ids))[0].output_ids
        return found
    finally:
        server.close()
