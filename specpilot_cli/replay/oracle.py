"""The oracle: how far any tree over the drafter's candidates could have gone on recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class OracleCount:
    """Sums over steps whose whole continuation is known."""

    steps: int
    oracle_drafts: int
    chain_drafts: int
    candidates: int

    @property
    def oracle_tau(self) -> float:
        """1 + accepted drafts / steps of the oracle."""
        return 1 + self.oracle_drafts / self.steps

    @property
    def chain_tau(self) -> float:
        """The same for the chain that was verified."""
        return 1 + self.chain_drafts / self.steps


def leading_hits(hits: Sequence[bool]) -> int:
    """Number of leading True values."""
    count = 0
    for hit in hits:
        if not hit:
            break
        count += 1
    return count


def count_oracle(requests: Sequence[tuple[int, Sequence[int], Sequence[dict[str, Any]]]]) -> OracleCount | None:
    """Count over recorded lattices.

    A step at the end of an output, where fewer target tokens follow than positions were drafted, is left out: its
    acceptance is censored. (Paper section 4.2: accept while the target's greedy token is within the top 16.)

    Args:
        requests: (prompt length, output ids, the engine's lattice of each step) per request.
    Returns:
        None when no step qualifies.
    """
    steps = oracle = chain = width = 0
    for prompt_len, output, lattice in requests:
        for step in lattice:
            first = int(step["position"]) - prompt_len + 1
            depth = len(step["candidates"])
            truth = output[first : first + depth]
            if len(truth) < depth:
                continue
            steps += 1
            oracle += leading_hits([t in c for t, c in zip(truth, step["candidates"], strict=True)])
            chain += leading_hits([t == c for t, c in zip(truth, step["chain"], strict=False)])
            width = max(width, *(len(c) for c in step["candidates"]))
    return OracleCount(steps, oracle, chain, width) if steps else None
