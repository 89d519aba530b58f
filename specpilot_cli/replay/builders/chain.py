"""The greedy chain: what stock engines verify."""

from __future__ import annotations

import numpy as np

from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import EMPTY, ROOT, Trees, tokens_of


def chain(steps: Steps, nodes: int) -> Trees:
    """From the anchor take the best child of the last taken candidate (ties: lowest rank), at most D nodes.

    Without transitions the best candidate of each position is taken.
    """
    count, total = min(nodes, steps.positions), len(steps)
    ranks = np.zeros((total, count), dtype=np.int16)
    scores = np.zeros((total, count), dtype=np.float32)
    every, taken, score = np.arange(total), np.zeros(total, dtype=np.intp), np.zeros(total, dtype=np.float32)
    for depth in range(count):
        row = steps.logprobs[:, depth] if steps.transitions is None else steps.transitions[every, depth, taken]
        taken = row.argmax(1)
        score = score + row[every, taken]
        ranks[:, depth], scores[:, depth] = taken, score
    depths = np.broadcast_to(np.arange(1, count + 1, dtype=np.int16), ranks.shape)
    parents = np.broadcast_to(np.arange(ROOT, count - 1, dtype=np.int16), ranks.shape)
    return _padded(steps, parents, ranks, depths, scores, nodes)


def _padded(
    steps: Steps, parents: np.ndarray, ranks: np.ndarray, depths: np.ndarray, scores: np.ndarray, nodes: int
) -> Trees:
    """To `nodes` slots, the last ones empty."""
    extra = ((0, 0), (0, nodes - parents.shape[1]))
    depths, ranks = np.pad(depths, extra), np.pad(ranks, extra, constant_values=-1)
    return Trees(
        parents=np.pad(parents, extra, constant_values=EMPTY),
        ranks=ranks,
        depths=depths,
        tokens=tokens_of(steps.ids, depths, ranks),
        scores=np.pad(scores, extra),
        nested=True,
    )


def reference(steps: Steps, nodes: int) -> list[list[tuple[int, int]]]:
    """Plain: per step the (parent slot, rank) of each node."""
    trees = []
    for s in range(len(steps)):
        tree: list[tuple[int, int]] = []
        taken = 0
        for depth in range(min(nodes, steps.positions)):
            row = steps.logprobs[s, depth] if steps.transitions is None else steps.transitions[s, depth, taken]
            taken = max(range(len(row)), key=lambda c: (row[c], -c))
            tree.append((len(tree) - 1, taken))
        trees.append(tree)
    return trees
