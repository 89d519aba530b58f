"""Running a window of requests on a server, and what its counters say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from specpilot_cli.artifacts.profile import Acceptance
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.deployment import Request
from specpilot_cli.engine.base import Generation, Server
from specpilot_cli.replay.oracle import OracleCount

PHASES = ("draft", "verify", "accept", "commit")


@dataclass(frozen=True)
class Window:
    """Generations of a request list, in its order."""

    requests: tuple[Request, ...]
    generations: tuple[Generation, ...]

    @property
    def step_ms(self) -> list[float]:
        """Wall time of every decode step, as the engine's loop saw it."""
        return [float(ms) for g in self.generations for ms in g.meta["step_ms"]]

    @property
    def steps(self) -> int:
        """Decode steps."""
        return len(self.step_ms)

    def phases_ms(self) -> dict[str, float]:
        """Mean per step of each decode phase."""
        return {p: sum(float(g.meta["phase_ms"].get(p, 0.0)) for g in self.generations) / self.steps for p in PHASES}


def run_window(server: Server, requests: Sequence[Request], max_new_tokens: int, **options: Any) -> Window:
    """One request after the other, caches flushed before each.

    Raises:
        ExternalFailed: the engine failed, or reports no step times.
    """
    found = []
    for request in requests:
        server.flush()
        limit = min(max_new_tokens, request.max_new_tokens)
        found += server.generate([request.input_ids], limit, ignore_eos=True, **options)
    if any("step_ms" not in g.meta or "phase_ms" not in g.meta for g in found):
        raise ExternalFailed("The engine reports no step times.", "meta_info has no step_ms and phase_ms.")
    return Window(tuple(requests), tuple(found))


def acceptance(window: Window, oracle: OracleCount | None) -> Acceptance:
    """τ over the window, and how often the first d drafts were all right.

    The end of an output cuts its last step short, so position rates leave that step out.
    """
    steps = sum(g.verify_steps for g in window.generations)
    correct = sum(g.correct_drafts for g in window.generations)
    if not steps:
        raise ExternalFailed("The engine verified nothing.", "The deployment's flags enable no drafter.")
    lengths = [int(n) - 1 for g in window.generations for n in g.meta.get("accept_lengths", [])[:-1]]
    deepest = max(lengths, default=0)
    rates = tuple(fmean(n >= d for n in lengths) for d in range(1, deepest + 1))
    return Acceptance(
        tau=1 + correct / steps,
        verify_steps=steps,
        correct_drafts=correct,
        completion_tokens=sum(len(g.output_ids) for g in window.generations),
        position_rate=rates,
        oracle_tau=oracle.oracle_tau if oracle else None,
        oracle_chain_tau=oracle.chain_tau if oracle else None,
        oracle_steps=oracle.steps if oracle else 0,
        candidates=oracle.candidates if oracle else 0,
    )
