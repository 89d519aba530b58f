"""OPT-Tree (arXiv 2406.17276): the N nodes that maximise the expected accept length, grown layer by layer.

Growth ends once a layer adds no more than `threshold` to the expected accept length (the sum of path probabilities):
for an autoregressive drafter the next layer would cost a pass. A parallel drafter has all layers at once; with a
threshold below 0 the tree is then the best-first tree.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.best_first import reference as best_first_reference
from specpilot_cli.replay.scores import path_scores
from specpilot_cli.replay.steps import Floats, Steps
from specpilot_cli.replay.trees import Trees

THRESHOLD = 0.5
"""The authors' setting for their longest accept lengths (60 nodes, threshold 0.5)."""


def opt_tree(steps: Steps, nodes: int, threshold: float = THRESHOLD) -> Trees:
    """The N best paths of the layers grown; the layer that gained too little is the last one. Not nested in N.

    The best N nodes of d layers are the best-first tree over the first d positions.
    """
    grown = best_first(steps.narrow(1), nodes)
    arrays = {f.name: np.array(getattr(grown, f.name)) for f in fields(Trees) if f.name != "nested"}
    value, going = _value(grown), np.arange(len(steps))
    for depth in range(2, steps.positions + 1):
        if not len(going):
            break
        grown = best_first(steps.narrow(depth).take(going), nodes)
        for name, array in arrays.items():
            array[going] = getattr(grown, name)
        now = _value(grown)
        gained, value[going] = now - value[going], now
        going = going[gained > threshold]
    return Trees(**arrays, nested=False)


def _value(trees: Trees) -> Floats:
    """[S] Sum of path probabilities."""
    return np.asarray(np.where(trees.depths > 0, np.exp(trees.scores), 0).sum(1), dtype=np.float32)


def reference(steps: Steps, nodes: int, threshold: float = THRESHOLD) -> list[list[tuple[int, int]]]:
    """Plain: best-first trees of growing depth until one more layer gains no more than the threshold."""
    trees = []
    for s in range(len(steps)):
        one, value = steps.take(np.array([s])), -np.inf
        for depth in range(1, steps.positions + 1):
            tree = best_first_reference(one.narrow(depth), nodes)[0]
            now = float(np.exp(np.array(path_scores(one, 0, tree))).sum(dtype=np.float32))
            if now - value <= threshold and depth > 1:
                break
            value = now
        trees.append(tree)
    return trees
