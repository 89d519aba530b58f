"""OPT-Tree (arXiv 2406.17276): the N nodes that maximise the expected accept length, grown layer by layer.

Growth ends once a layer adds less than `threshold` to the expected accept length (the sum of path probabilities):
for an autoregressive drafter the next layer would cost a pass. A parallel drafter has all layers at once; with a
threshold of 0 the tree is then the best-first tree.
"""

from __future__ import annotations

import numpy as np

from specpilot_cli.replay.builders.best_first import reference as best_first_reference
from specpilot_cli.replay.builders.levels import Level, assemble, blocks, expand, joined
from specpilot_cli.replay.steps import Floats, Steps
from specpilot_cli.replay.trees import Trees

THRESHOLD = 0.5
"""The authors' setting for their longest accept lengths (60 nodes, threshold 0.5)."""
_BLOCK = 256


def opt_tree(steps: Steps, nodes: int, threshold: float = THRESHOLD) -> Trees:
    """Each layer keeps its N best nodes; the tree is the N best of all layers grown. Not nested in N."""
    return joined([_block(block, nodes, threshold) for block in blocks(steps, _BLOCK)])


def _block(block: Steps, nodes: int, threshold: float) -> Trees:
    levels = [expand(block, None, 0, nodes).cut(nodes)]
    value, going = _value(levels, nodes), np.ones(len(block), dtype=np.bool_)
    for depth in range(1, block.positions):
        grown = expand(block, levels[-1], depth, nodes).cut(nodes)
        levels.append(Level(grown.rank, grown.score, grown.parent, grown.real & going[:, None]))
        now = _value(levels, nodes)
        going &= now - value > threshold
        value = now
        if not going.any():
            break
    trees = assemble(block, levels, nodes)
    return Trees(trees.parents, trees.ranks, trees.depths, trees.tokens, trees.scores, nested=False)


def _value(levels: list[Level], nodes: int) -> Floats:
    """[S] Sum of the N largest path probabilities."""
    scores = np.concatenate([np.where(level.real, level.score, -np.inf) for level in levels], 1)
    if scores.shape[1] > nodes:
        scores = -np.partition(-scores, nodes - 1, axis=1)[:, :nodes]
    return np.asarray(np.exp(scores).sum(1), dtype=np.float32)


def reference(steps: Steps, nodes: int, threshold: float = THRESHOLD) -> list[list[tuple[int, int]]]:
    """Plain: best-first trees of growing depth until one more layer gains no more than the threshold."""
    trees = []
    for s in range(len(steps)):
        one, value = steps.take(np.array([s])), -np.inf
        for depth in range(1, steps.positions + 1):
            tree = best_first_reference(one.narrow(depth), nodes)[0]
            now = _plain_value(one, tree)
            if now - value <= threshold and depth > 1:
                break
            value = now
        trees.append(tree)
    return trees


def _plain_value(one: Steps, tree: list[tuple[int, int]]) -> float:
    from specpilot_cli.replay.scores import path_scores

    return float(np.exp(np.array(path_scores(one, 0, tree), dtype=np.float32)).sum(dtype=np.float32))
