"""A chain from the request's own text, grafted on a tree: after an n-gram that was seen before, what followed it then.

(The paper's EAGLE-3 deployment attaches an n-gram chain to the drafter's tree, section 5.4.) The chain may leave the
lattice: its nodes then have rank -1 and only a token. Two ways to look: for the last three tokens (`ngram`), and for
the longest end of the text, from six tokens down to two, that stands in it before (`suffix`, as the memory entry
`tree-ngram` does).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.best_first import reference as best_first_reference
from specpilot_cli.replay.steps import UNKNOWN, Bools, Ints, Steps
from specpilot_cli.replay.trees import EMPTY, ROOT, Trees

GRAM = (3,)
SUFFIX = (6, 5, 4, 3, 2)
"""Lengths that are looked for, the first that is found counts."""
SHARE = 4
"""One node in so many is the chain's, where there is one."""


def ngram_grafted(steps: Steps, nodes: int) -> Trees:
    """A best-first tree of N - m nodes and an n-gram chain of at most m = N // 4; where they agree they share nodes.

    Where no n-gram was seen before, and for what agreement leaves over, the tree has its own next best nodes.
    """
    return _grafted(steps, nodes, GRAM)


def suffix_grafted(steps: Steps, nodes: int) -> Trees:
    """The same with the longest end of the text that was seen before."""
    return _grafted(steps, nodes, SUFFIX)


def _grafted(steps: Steps, nodes: int, grams: tuple[int, ...]) -> Trees:
    return graft(best_first(steps, nodes), chains(steps, min(nodes // SHARE, steps.positions), grams), nodes)


def chains(steps: Steps, length: int, grams: tuple[int, ...] = GRAM) -> Ints:
    """[S, length] Tokens that followed the latest earlier occurrence of the last tokens; UNKNOWN where there is none.

    grams: how many tokens have to agree, in the order in which they are looked for.

    Only text up to the anchor is read: at run time there is no more. Where it ends, the chain goes on as a loop.
    """
    found = np.full((len(steps), length), UNKNOWN, dtype=np.int32)
    for index, text in enumerate(steps.texts):
        low, high = np.searchsorted(steps.request, [index, index + 1])
        ends = text.prompt_tokens + steps.offset[low:high]  # place of the anchor
        found[low:high] = _chains_in(text.tokens, ends, length, grams)
    return found


def _chains_in(tokens: Ints, ends: NDArray[np.int32], length: int, grams: tuple[int, ...]) -> Ints:
    result = np.full((len(ends), length), UNKNOWN, dtype=np.int32)
    latest: dict[tuple[int, ...], int] = {}
    listed, entered = tokens.tolist(), 0

    def ending(place: int) -> list[tuple[int, ...]]:
        return [tuple(listed[place - gram + 1 : place + 1]) for gram in grams if place >= gram - 1]

    for row, end in enumerate(ends.tolist()):
        while entered < end:  # n-grams that end before the anchor
            latest |= dict.fromkeys(ending(entered), entered)
            entered += 1
        at = next((latest[tail] for tail in ending(end) if tail in latest), None)
        if at is not None:
            period = listed[at + 1 : end + 1]
            result[row] = (period * (length // len(period) + 1))[:length]
    return result


def reference(steps: Steps, nodes: int, grams: tuple[int, ...] = GRAM) -> list[list[tuple[int, int]]]:
    """Plain: per step the (parent slot, token) of each node."""
    length = min(nodes // SHARE, steps.positions)
    trees = []
    for s, listed in enumerate(best_first_reference(steps, nodes)):
        text = steps.texts[steps.request[s]]
        seen = text.tokens[: text.prompt_tokens + int(steps.offset[s]) + 1].tolist()
        end = next((end for gram in grams if (end := _before(seen, gram)) is not None), None)
        chain = [] if end is None else [seen[end + 1 + j % (len(seen) - end - 1)] for j in range(length)]
        trees.append(_plain_graft(steps, s, listed, chain, nodes))
    return trees


def _before(seen: list[int], gram: int) -> int | None:
    """Where the last `gram` tokens end for the last time before the end."""
    for end in range(len(seen) - 2, gram - 2, -1):
        if len(seen) >= gram and seen[end - gram + 1 : end + 1] == seen[-gram:]:
            return end
    return None


def _plain_graft(
    steps: Steps, s: int, listed: list[tuple[int, int]], chain: list[int], nodes: int
) -> list[tuple[int, int]]:
    paths: list[tuple[int, ...]] = []
    for parent, rank in listed:
        above = () if parent < 0 else paths[parent]
        paths.append((*above, int(steps.ids[s, len(above), rank])))
    kept = paths[: nodes - len(chain)]
    for path in [tuple(chain[: j + 1]) for j in range(len(chain))] + paths:
        if path not in kept and len(kept) < nodes and (len(path) == 1 or path[:-1] in kept):
            kept.append(path)
    slot = {(): -1} | {path: index for index, path in enumerate(kept)}
    return [(slot[path[:-1]], path[-1]) for path in kept]


def graft(trees: Trees, chain: Ints, nodes: int) -> Trees:
    """Put the chain's nodes in place of the tree's last ones; trees must be nested and have `nodes` slots.

    The chain hangs on the deepest node that the tree has of it. Every step keeps at most `nodes` nodes.
    """
    count, length = len(trees), chain.shape[1]
    keep = nodes - np.minimum((chain != UNKNOWN).sum(1), length)
    kept = (np.arange(nodes) < keep[:, None]) & (trees.parents != EMPTY)
    arrays = {
        "parents": np.where(kept, trees.parents, EMPTY),
        "ranks": np.where(kept, trees.ranks, -1),
        "depths": np.where(kept, trees.depths, 0),
        "tokens": np.where(kept, trees.tokens, -1),
        "scores": np.where(kept, trees.scores, 0),
    }
    at, size = np.full(count, ROOT, dtype=np.int16), kept.sum(1)
    for place in range(length):
        token = chain[:, place]
        going = token != UNKNOWN
        same: Bools = (arrays["parents"] == at[:, None]) & (arrays["tokens"] == token[:, None])
        found = same.any(1) & going
        new = np.flatnonzero(going & ~found)
        slot = size[new]
        arrays["parents"][new, slot], arrays["tokens"][new, slot] = at[new], token[new]
        arrays["depths"][new, slot] = place + 1
        size[new] += 1
        at = np.where(found, same.argmax(1), at).astype(np.int16)
        at[new] = slot
    return Trees(**_refill(trees, arrays, size), nested=False)


def _refill(trees: Trees, arrays: dict[str, np.ndarray], size: NDArray[np.int64]) -> dict[str, np.ndarray]:
    """What is left of the budget goes to the tree's next best nodes that the chain has not brought in."""
    nodes = trees.slots
    slot_of = np.where(np.arange(nodes) < size[:, None], np.arange(nodes), EMPTY)
    own = trees.parents != EMPTY
    moved = np.full((len(trees), nodes + 1), EMPTY, dtype=np.int64)  # slot of the tree's node, in the grafted tree
    moved[:, -1] = ROOT
    for slot in range(nodes):
        parent = np.take_along_axis(moved, trees.parents[:, slot : slot + 1].clip(-1), 1)[:, 0]
        same = (arrays["parents"] == parent[:, None]) & (arrays["tokens"] == trees.tokens[:, slot, None])
        same &= (slot_of != EMPTY) & own[:, slot, None]
        moved[:, slot] = np.where(same.any(1), same.argmax(1), EMPTY)
        new = np.flatnonzero(own[:, slot] & ~same.any(1) & (size < nodes) & (parent != EMPTY))
        for name in ("ranks", "depths", "tokens", "scores"):
            arrays[name][new, size[new]] = getattr(trees, name)[new, slot]
        arrays["parents"][new, size[new]] = parent[new]
        slot_of[new, size[new]] = moved[new, slot] = size[new]
        size[new] += 1
    return arrays
