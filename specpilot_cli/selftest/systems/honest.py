"""Honest systems: none of them may be rejected."""

from __future__ import annotations

from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.core.paths import share_dir
from specpilot_cli.selftest.system import Edit, System

IDENTICAL = System(name="identical", does="the stock tree itself", kind="honest", order="ABBA", fresh=4)

COMMENT = System(
    name="comment",
    does="stock with another comment: a new tree id, the same engine",
    kind="honest",
    edits=(
        Edit(
            "miniengine/gdn.py",
            '"""The gated delta rule:',
            '"""The gated delta rule (with another comment):',
        ),
    ),
    order="ABBA",
    fresh=4,
)

HEAD_IN_HALVES = System(
    name="head-in-halves",
    does="sums the LM head's product in two halves: near-ties may fall the other way",
    kind="honest",
    edits=(
        Edit(
            "miniengine/model.py",
            "        return F.linear(hidden, head)\n",
            "        half = hidden.shape[-1] // 2\n"
            "        left = F.linear(hidden[..., :half], head[:, :half])\n"
            "        return left + F.linear(hidden[..., half:], head[:, half:])\n",
        ),
    ),
    order="ABBA",
    fresh=4,
)

OTHER_ORDER = System(
    name="recurrence-reordered",
    does="solves the recurrence through the inverse: the same sum in another order",
    kind="honest",
    edits=(
        Edit(
            "miniengine/gdn.py",
            "    u = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)\n",
            "    identity = torch.eye(rows, dtype=system.dtype, device=system.device).expand_as(system)\n"
            "    u = torch.linalg.solve_triangular(system, identity, upper=False, unitriangular=True) @ right\n",
        ),
    ),
    order="ABBA",
    fresh=4,
)


def _tree() -> tuple[System, ...]:
    """The memory entry `tree`, where this installation has it."""
    from specpilot_cli.memory.entry import load_entry

    try:
        folder = share_dir("memory") / "miniengine" / "tree"
    except SpecPilotError:
        return ()
    if not (folder / "entry.toml").is_file():
        return ()
    entry = load_entry(folder)
    return (
        System(
            name="tree",
            does="the memory entry miniengine/tree",
            kind="honest",
            delta=entry.delta_path.read_bytes,
            vary=entry.entry.delta.vary,
            order="ABBA",
            fresh=4,
        ),
    )


def systems() -> tuple[System, ...]:
    """All of them."""
    return (IDENTICAL, COMMENT, HEAD_IN_HALVES, OTHER_ORDER, *_tree())
