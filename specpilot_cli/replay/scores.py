"""Path scores of listed trees, by the definition: for references and tests."""

from __future__ import annotations

import numpy as np

from specpilot_cli.replay.steps import Steps


def path_scores(steps: Steps, step: int, tree: list[tuple[int, int]]) -> list[np.float32]:
    """Sum of log p(child | parent) from the anchor down, of every (parent slot, rank) of a tree, in float32."""
    depth, score = {-1: 0}, {-1: np.float32(0)}
    for slot, (parent, rank) in enumerate(tree):
        depth[slot] = depth[parent] + 1
        given = 0 if parent < 0 else tree[parent][1]
        at = depth[parent]
        edge = steps.logprobs[step, at] if steps.transitions is None else steps.transitions[step, at, given]
        score[slot] = np.float32(score[parent] + edge[rank])
    return [score[slot] for slot in range(len(tree))]
