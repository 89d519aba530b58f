"""The target's path through each lattice: what fitted builders learn from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specpilot_cli.replay.builders.best_first import conditioned_rows
from specpilot_cli.replay.steps import UNKNOWN, Bools, Floats, Ints, Steps


@dataclass(frozen=True)
class TargetPath:
    """Depth by depth along the target's greedy tokens.

    edges [S, D, K]: edge scores of all children of the path's node above. hit [S, D]: rank of the target's token among
    them, -1 where it is no candidate. reached [S, D]: the node above is on the path and the target's token is known.
    """

    edges: Floats
    hit: Ints
    reached: Bools


def target_path(steps: Steps) -> TargetPath:
    """Walk every lattice along the target's tokens."""
    shape = (len(steps), steps.positions)
    edges = np.zeros((*shape, steps.width), dtype=np.float32)
    hit, reached = np.full(shape, -1, dtype=np.int32), np.zeros(shape, dtype=np.bool_)
    rows, at = conditioned_rows(steps), np.zeros(len(steps), dtype=np.intp)
    going = np.ones(len(steps), dtype=np.bool_)
    for depth in range(steps.positions):
        wanted = steps.continuation[:, depth]
        going = going & (wanted != UNKNOWN)
        edges[:, depth] = rows(np.full(len(steps), depth, dtype=np.intp), at)
        match = steps.ids[:, depth] == wanted[:, None]
        reached[:, depth] = going
        found = match.any(1)
        hit[:, depth] = np.where(going & found, match.argmax(1), -1)
        going = going & found
        at = np.where(going, match.argmax(1), 0)
    return TargetPath(edges, hit, reached)
