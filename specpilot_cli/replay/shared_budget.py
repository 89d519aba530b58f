"""One node budget for a whole batch (paper section 4.4): which request gets how many nodes of its best-first order.

A pure function of path scores, so that a serving engine can reuse it. Each request's nodes come best first, and a
child scores no more than its parent, so the nodes a request keeps are a prefix of its order and prefix-closed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.steps import Floats, Ints
from specpilot_cli.replay.trees import Small


def shares(scores: Floats, depths: Small, ranks: Small, sizes: Ints, budget: int) -> Ints:
    """Nodes [B] of each request, `budget` in all (fewer when the trees hold fewer).

    The best path scores of the batch stay. Equal scores: shallower, then lower rank, then lower slot, then lower
    request.

    Args:
        scores: [B, N] path scores in best-first order. depths, ranks: [B, N]. sizes: [B] real nodes of each tree.
    """
    batch, slots = scores.shape
    real = np.arange(slots) < np.asarray(sizes)[:, None]
    request, slot = np.nonzero(real)
    order = np.lexsort((request, slot, ranks[real], depths[real], -scores[real]))
    chosen = order[:budget]
    return np.bincount(request[chosen], minlength=batch).astype(np.int32)


def equal_shares(batch: int, budget: int) -> Ints:
    """The same number for each; what is left over goes to the first ones."""
    return np.asarray(budget // batch + (np.arange(batch) < budget % batch), dtype=np.int32)


def batches(count: int, batch: int, seed: int) -> NDArray[np.intp]:
    """[count // batch, batch] Indices of steps that happen to be served together: a random grouping."""
    order = np.random.default_rng(seed).permutation(count)
    return order[: count // batch * batch].reshape(-1, batch)


def reference(scores: Sequence[Sequence[tuple[float, int, int]]], budget: int) -> list[int]:
    """Plain: a heap over the heads of the requests' orders of (score, depth, rank)."""
    taken = [0] * len(scores)
    heap: list[tuple[float, int, int, int, int]] = []

    def push(request: int) -> None:
        slot = taken[request]
        if slot < len(scores[request]):
            score, depth, rank = scores[request][slot]
            heapq.heappush(heap, (-score, depth, rank, slot, request))

    for request in range(len(scores)):
        push(request)
    while heap and sum(taken) < budget:
        request = heapq.heappop(heap)[-1]
        taken[request] += 1
        push(request)
    return taken
