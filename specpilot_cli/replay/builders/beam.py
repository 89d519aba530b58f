"""A beam of fixed width, then the N best of its nodes (as the open SGLang pull request 36196 does for DFlash2)."""

from __future__ import annotations

from specpilot_cli.replay.builders.best_first import reference as best_first_reference
from specpilot_cli.replay.builders.levels import assemble, blocks, expand, joined
from specpilot_cli.replay.steps import Steps
from specpilot_cli.replay.trees import Trees

WIDTH = 4


def beam(steps: Steps, nodes: int, width: int = WIDTH) -> Trees:
    """At each depth the `width` best children of the depth above stay; the N best of all depths are the tree."""
    return joined([_block(block, nodes, width) for block in blocks(steps)])


def _block(block: Steps, nodes: int, width: int) -> Trees:
    levels = [expand(block, None, 0, width).cut(width)]
    for depth in range(1, block.positions):
        levels.append(expand(block, levels[-1], depth, width).cut(width))
    return assemble(block, levels, nodes)


def reference(steps: Steps, nodes: int, width: int = WIDTH) -> list[list[tuple[int, int]]]:
    """Plain: the best-first order over everything, thinned to the `width` best of each depth whose parents stayed."""
    trees = []
    everything = sum(steps.width**d for d in range(1, steps.positions + 1))
    for full in best_first_reference(steps, everything):
        tree: list[tuple[int, int]] = []
        slot, depth_of, held = {-1: -1}, {-1: 0}, [0] * (steps.positions + 1)
        for index, (parent, rank) in enumerate(full):
            depth = depth_of[index] = depth_of[parent] + 1
            if parent in slot and held[depth] < width:
                held[depth] += 1
                slot[index] = len(tree)
                tree.append((slot[parent], rank))
        trees.append(tree[:nodes])
    return trees
