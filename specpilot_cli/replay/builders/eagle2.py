"""EAGLE-2 (arXiv 2406.16858): expand the top k of every depth by their top k children, rerank all of them to N."""

from __future__ import annotations

from specpilot_cli.replay.builders.levels import assemble, blocks, expand, joined
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import Trees

TOP_K = 4


def eagle2(steps: Steps, nodes: int, k: int = TOP_K) -> Trees:
    """k children of the anchor; at each depth the k best nodes by path score get k children each; the N best stay."""
    return joined([_block(block, nodes, k) for block in blocks(steps)])


def _block(block: Steps, nodes: int, k: int) -> Trees:
    levels = [expand(block, None, 0, k)]
    for depth in range(1, block.positions):
        levels.append(expand(block, levels[-1].cut(k), depth, k))
    return assemble(block, levels, nodes)


def reference(steps: Steps, nodes: int, k: int = TOP_K) -> list[list[tuple[int, int]]]:
    """Plain: per step the (parent slot, rank) of each node."""
    return [_plain(steps, s, nodes, k) for s in range(len(steps))]


def _plain(steps: Steps, s: int, nodes: int, k: int) -> list[tuple[int, int]]:
    import numpy as np

    Path = tuple[int, ...]
    scores: dict[Path, np.float32] = {}
    beam: list[Path] = [()]
    order: dict[Path, int] = {(): 0}

    def key(path: Path) -> tuple[float, int, int, int]:
        return -float(scores[path]), len(path), path[-1], order[path[:-1]]

    for depth in range(steps.positions):
        grown: list[Path] = []
        for path in beam:
            given = steps.transitions
            row = steps.logprobs[s, depth] if given is None else given[s, depth, path[-1] if path else 0]
            base = scores.get(path, np.float32(0))
            best = sorted(range(len(row)), key=lambda c: (-float(base + row[c]), c))[:k]
            for child in best:
                scores[(*path, child)] = np.float32(base + row[child])
                grown.append((*path, child))
        grown.sort(key=key)
        order |= {path: index for index, path in enumerate(grown)}
        beam = grown[:k]
    chosen = sorted(scores, key=lambda p: (-float(scores[p]), len(p), order[p]))[:nodes]
    slot = {(): -1} | {path: index for index, path in enumerate(chosen)}
    return [(slot[path[:-1]], path[-1]) for path in chosen]
