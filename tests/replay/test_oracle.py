"""Oracle counting on lattices small enough to count by hand."""

from __future__ import annotations

from typing import Any

from specpilot_cli.replay.oracle import count_oracle


def step(position: int, candidates: list[list[int]], chain: list[int]) -> dict[str, Any]:
    return {"position": position, "candidates": candidates, "chain": chain}


def test_counts_leading_hits_of_chain_and_candidates() -> None:
    # prompt of 4 tokens (positions 0..3); output 10 11 12 13 14 stands at positions 4..8
    output = [10, 11, 12, 13, 14]
    lattice = [
        step(4, [[11, 1], [1, 12], [1, 2]], [11, 1, 13]),  # truth 11 12 13: oracle 2, chain 1
        step(5, [[1, 2], [13, 1], [14, 1]], [12, 13, 14]),  # truth 12 13 14: oracle 0, chain 3
        step(7, [[14, 1], [1, 2], [3, 4]], [14, 1, 1]),  # only one token follows: censored, left out
    ]
    found = count_oracle([(4, output, lattice)])
    assert found is not None
    assert (found.steps, found.oracle_drafts, found.chain_drafts, found.candidates) == (2, 2, 4, 2)
    assert (found.oracle_tau, found.chain_tau) == (2.0, 3.0)


def test_no_usable_step() -> None:
    assert count_oracle([(4, [10], [step(4, [[11]], [11])])]) is None
