"""What `specpilot replay` says on stderr."""

from __future__ import annotations

from specpilot_cli.artifacts.replay import Curve, ReplayBody
from specpilot_cli.commands._tables import table
from specpilot_cli.core import console

SHOWN = 8
"""Budgets a table shows; the artifact has all."""


def tell(body: ReplayBody) -> None:
    """Tables and verdicts."""
    for item in body.lattices:
        said = {True: "the chain's replay is the engine's run", False: "THE CHAIN'S REPLAY IS NOT THE ENGINE'S RUN"}
        console.verdict(
            f"{item.name}: {item.lattices} lattices of {item.requests} requests, {item.drafter}"
            + (f"; {said[item.chain_equals_engine]}" if item.chain_equals_engine is not None else "")
        )
    for lattice, positions in dict.fromkeys((c.lattice, c.positions) for c in body.curves):
        same = [c for c in body.curves if (c.lattice, c.positions) == (lattice, positions)]
        heads = ("builder", "nodes", "τ", "low", "high", "1st %", "accepted/node", "µs/tree")
        rows = [row for curve in same for row in _rows(curve)]
        table(f"{lattice}, {positions} positions: tokens a step, 95 % interval ({same[0].walk})", heads, rows)
    _tell_lengths(body)
    _tell_cost(body)
    for point in body.shared:
        gain = (point.shared_tau / point.equal_tau - 1) * 100
        console.verdict(
            f"{point.lattice}: batch {point.batch}, {point.positions} positions, {point.budget} nodes: equal shares"
            f" τ {point.equal_tau:.3f}, shared {point.shared_tau:.3f} ({gain:+.1f} %)"
        )


def _rows(curve: Curve) -> list[tuple[str, ...]]:
    """At most `SHOWN` budgets, the largest among them."""
    step = max(1, -(-len(curve.points) // SHOWN))
    return [
        (
            curve.builder, str(point.nodes or "-"), f"{point.tau:.3f}", f"{point.low:.3f}", f"{point.high:.3f}",
            f"{100 * point.position_rate[0]:.0f}", f"{point.accepted_per_node:.3f}" if point.nodes else "",
            f"{curve.tree_us:.1f}",
        )
        for point in curve.points[::-1][::step][::-1]
    ]  # fmt: skip


def _tell_lengths(body: ReplayBody) -> None:
    if body.lengths is None:
        return
    known = body.lengths
    table(
        f"acceptance lengths of the same steps ({known.lattice}, {known.builder}, {known.nodes} nodes)",
        ("definition", "value", "used by"),
        [(row.name, f"{row.value:.3f}", row.used_by) for row in known.rows if row.used_by or not row.first],
    )


def _tell_cost(body: ReplayBody) -> None:
    if body.cost is None:
        return
    for region in body.cost.flat:
        console.say(
            f"c is flat from {region.first_nodes} to {region.last_nodes} nodes ({region.step_ms:.2f} ms a step)"
        )
    for curve in body.cost.curves:
        console.verdict(
            f"{curve.lattice} {curve.builder}, {curve.positions} positions: best at {curve.best_nodes} nodes,"
            f" {curve.best_speedup:.2f}× AR"
        )
