"""What fewer drafts a step would give, from rows→time alone, for every accept length.

With p(d) the probability that the first d drafts are all right, τ(k) = 1 + p(1) + … + p(k), and p never rises. So for
j < k the first j terms are at least j/k of the first k: τ(j) ≥ 1 + (j/k)(τ(k) - 1), and τ(j) ≤ τ(k). With
1 ≤ τ(k) ≤ k + 1 that gives (j + 1)/(k + 1) ≤ τ(j)/τ(k) ≤ 1 whatever the drafter does.
"""

from __future__ import annotations

from specpilot_cli.artifacts.figures import Block, RowsFigures


def blocks(table: RowsFigures) -> tuple[Block, ...]:
    """Every smaller number of drafts whose rows were measured, against `table.drafts`; empty where that is not given.

    The gain is a speed ratio - 1: (τ(j)/τ(k)) × (step(k + 1 rows) / step(j + 1 rows)), with both bounds of the first.
    """
    times = dict(zip(table.rows, table.ms, strict=True))
    if table.drafts is None or table.drafts + 1 not in times:
        return ()
    now = times[table.drafts + 1] + table.rest_ms
    found = []
    for rows in sorted(row for row in times if 2 <= row <= table.drafts):
        step = times[rows] + table.rest_ms
        found.append(
            Block(
                drafts=rows - 1, rows=rows, step_ms=step,
                gain_at_least=rows / (table.drafts + 1) * now / step - 1.0, gain_at_most=now / step - 1.0,
            )
        )  # fmt: skip
    return tuple(found)


def certain(found: tuple[Block, ...]) -> Block | None:
    """The block with the largest gain that holds for every accept length; None where none is above 0."""
    best = max(found, key=lambda block: block.gain_at_least, default=None)
    return best if best is not None and best.gain_at_least > 0 else None
