"""The WY form against the plain recurrence, in float64.

Tolerance: both compute the same reals with <= a few hundred float64 roundings of values of order 1, and the unit
triangular system stays well conditioned (beta <= 1, unit keys, decay <= 1), so 1e-10 leaves five decimal orders over
the 1e-15 rounding unit and is far below any wrong index or missing factor.
"""

from __future__ import annotations

import pytest
import torch
from miniengine import gdn

TOLERANCE = 1e-10


def inputs(rows: int, seed: int, batch: int = 2) -> tuple[torch.Tensor, ...]:
    """q, k (unit), v, g (log decay), beta, state."""
    make = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(batch, 3, rows, 5), dim=-1) for _ in range(2))
    g, beta = -normal(batch, 3, rows).abs(), torch.sigmoid(normal(batch, 3, rows))
    return q, k, normal(batch, 3, rows, 7), g, beta, normal(batch, 3, 5, 7)


def random_parents(rows: int, seed: int) -> list[int]:
    """Row 0 is the root; every other row follows an earlier one."""
    make = torch.Generator().manual_seed(seed)
    return [-1] + [int(torch.randint(i, (1,), generator=make)) for i in range(1, rows)]


def path_to(row: int, parents: list[int]) -> list[int]:
    """Rows from the root to `row`."""
    path = []
    while row != -1:
        path.append(row)
        row = parents[row]
    return path[::-1]


def tree_bias(parents: list[int]) -> torch.Tensor:
    """0 on ancestors and self, -inf elsewhere."""
    bias = torch.full((len(parents), len(parents)), float("-inf"), dtype=torch.float64)
    for row in range(len(parents)):
        bias[row, path_to(row, parents)] = 0
    return bias


@pytest.mark.parametrize("rows", [1, 2, 9, 33])
def test_block_equals_recurrence(rows: int) -> None:
    q, k, v, g, beta, state = inputs(rows, seed=rows)
    want, end = gdn.recurrent(q, k, v, g, beta, state)
    got, update = gdn.gated_delta(q, k, v, g, beta, state, gdn.causal_bias(rows, q))
    assert (got - want).abs().max() < TOLERANCE
    assert (gdn.final_state(update) - end).abs().max() < TOLERANCE


def test_snapshots_are_the_states_after_every_row() -> None:
    q, k, v, g, beta, state = inputs(9, seed=1)
    _, update = gdn.gated_delta(q, k, v, g, beta, state, gdn.causal_bias(9, q))
    kept = gdn.snapshots(update)
    for row in range(9):
        part = slice(0, row + 1)
        _, want = gdn.recurrent(q[:, :, part], k[:, :, part], v[:, :, part], g[:, :, part], beta[:, :, part], state)
        assert (kept[:, row] - want).abs().max() < TOLERANCE


@pytest.mark.parametrize("rows", [63, 64, 65, 130])
def test_chunks_equal_recurrence(rows: int) -> None:
    q, k, v, g, beta, state = inputs(rows, seed=rows)
    want, end = gdn.recurrent(q, k, v, g, beta, state)
    got, after = gdn.chunked(q, k, v, g, beta, state, gdn.causal_bias(rows, q))
    assert (got - want).abs().max() < TOLERANCE
    assert (after - end).abs().max() < TOLERANCE


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_equals_the_recurrence_along_each_root_path(seed: int) -> None:
    rows = 2 + 3 * seed
    q, k, v, g, beta, state = inputs(rows, seed)
    parents = random_parents(rows, seed)
    got, update = gdn.gated_delta(q, k, v, g, beta, state, tree_bias(parents))
    states = gdn.snapshots(update)
    for row in range(rows):
        path = path_to(row, parents)
        want, end = gdn.recurrent(q[:, :, path], k[:, :, path], v[:, :, path], g[:, :, path], beta[:, :, path], state)
        assert (got[:, :, row] - want[:, :, -1]).abs().max() < TOLERANCE
        assert (states[:, row] - end).abs().max() < TOLERANCE


def test_padding_rows_leave_the_state_alone() -> None:
    q, k, v, g, beta, state = inputs(6, seed=3)
    g[:, :, 4:], beta[:, :, 4:] = 0, 0
    _, update = gdn.gated_delta(q, k, v, g, beta, state, gdn.causal_bias(6, q))
    part = slice(0, 4)
    _, want = gdn.recurrent(q[:, :, part], k[:, :, part], v[:, :, part], g[:, :, part], beta[:, :, part], state)
    assert (gdn.final_state(update) - want).abs().max() < TOLERANCE


def test_gradients_of_the_block_equal_those_of_the_recurrence() -> None:
    grads = []
    for form in ("block", "recurrence"):
        tensors = [t.requires_grad_() for t in inputs(7, seed=5)]
        if form == "block":
            out, _ = gdn.gated_delta(*tensors, gdn.causal_bias(7, tensors[0]))
        else:
            out, _ = gdn.recurrent(*tensors)
        grads.append(torch.autograd.grad((out * out).sum(), tensors))
    for got, want in zip(*grads, strict=True):
        assert (got - want).abs().max() < 1e-8  # gradients here are of order 10 to 100
