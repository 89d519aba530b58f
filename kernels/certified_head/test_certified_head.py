"""The certified head against the head itself: random, adversarial and degenerate rows; the bound; the fallback."""

import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot_kernels.certified_head import op, reference
from specpilot_kernels.certified_head.cases import head_weight
from specpilot_kernels.certified_head.cases import rows_for as rows


def own_argmax(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Every score as the torch path rescores it, lowest id among the largest."""
    found = torch.stack([(weight.float() * row.float()).sum(1).bfloat16().float() for row in x])
    return (found == found.amax(1, keepdim=True)).int().argmax(1)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 200), st.integers(0, 2**20))
def test_argmax_is_the_heads_own(v: int, k: int, seed: int) -> None:
    weight = head_weight(v, k, seed)
    x = rows(weight, 6, seed)
    assert torch.equal(op.argmax(x, op.prepare(weight)), own_argmax(x, weight))


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 300), st.integers(1, 100), st.integers(0, 2**20), st.integers(1, 20))
def test_topk_is_the_sorted_heads(v: int, k: int, seed: int, wanted: int) -> None:
    weight = head_weight(v, k, seed)
    x = rows(weight, 4, seed)
    values, ids = op.topk(x, op.prepare(weight), min(wanted, v))
    found = torch.stack([(weight.float() * row.float()).sum(1).bfloat16().float() for row in x])
    expected, order = torch.sort(found, dim=1, descending=True, stable=True)
    assert torch.equal(values, expected[:, : min(wanted, v)])
    assert torch.equal(ids, order[:, : min(wanted, v)])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 200), st.integers(1, 300), st.integers(0, 2**20), st.floats(-20, 20))
def test_bounds_hold_the_exact_score(v: int, k: int, seed: int, log2_scale: float) -> None:
    weight = head_weight(v, k, seed)
    x = (rows(weight, 4, seed).float() * 2**log2_scale).bfloat16()
    low, high = op.bounds(x, op.prepare(weight))
    exact = x.double() @ weight.double().T
    assert bool((low <= exact).all()) and bool((exact <= high).all())
    single = x.float() @ weight.float().T
    assert bool((low <= single).all()) and bool((single <= high).all())


def test_a_bound_without_the_residual_would_drop_the_best_token() -> None:
    # two rows whose copies order them the other way round: the bound, not luck, keeps both
    weight = torch.zeros(2, 256, dtype=torch.bfloat16)
    weight[:, 0] = 1.0
    weight[0, 1:] = 0.0039  # just below half a step of 1/127: the copy drops it
    weight[1, 1:2] = 0.004  # just above half: the copy doubles it
    x = torch.ones(1, 256).bfloat16()
    head = op.prepare(weight)
    about = (x.float() @ head.quantised.float().T) * head.scale
    assert int(about.argmax()) == 1
    assert int(op.argmax(x, head)) == int(reference.argmax(x, weight)) == 0
    assert op.survivors(x, head).tolist() == [[True, True]]


def test_degenerate_heads() -> None:
    for weight in (torch.zeros(5, 8), torch.full((5, 8), -3e38), torch.full((5, 8), 1e-40)):
        x = torch.ones(2, 8).bfloat16() * 0.001
        assert op.argmax(x, op.prepare(weight.bfloat16())).tolist() == [0, 0]
    bad = torch.ones(3, 4)
    bad[1, 1] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        op.prepare(bad.bfloat16())
    with pytest.raises(ValueError, match="BF16"):
        op.argmax(torch.ones(1, 4), op.prepare(torch.ones(3, 4).bfloat16()))


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run with TRITON_INTERPRET=1")
@pytest.mark.parametrize(("capacity", "rows_first"), [(1 << 16, True), (3, True), (1 << 16, False)])
def test_triton_in_the_interpreter(capacity: int, rows_first: bool) -> None:
    from specpilot_kernels.certified_head import triton_kernel

    weight = head_weight(700, 192, 3)
    x, head = rows(weight, 5, 3), op.prepare(weight)
    as_float = replace(head, weight=weight.float())
    tile = triton_kernel.TILE if rows_first else triton_kernel.WEIGHTS_FIRST
    assert torch.equal(triton_kernel.argmax(x.float(), as_float, capacity, tile), reference.argmax(x, weight))


@pytest.mark.gpu
@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("capacity", [1 << 16, 3])
@pytest.mark.parametrize(("v", "k", "m"), [(700, 192, 5), (5000, 1000, 32), (4096, 5120, 1)])
def test_triton_on_a_gpu(v: int, k: int, m: int, capacity: int, rows_first: bool) -> None:
    from specpilot_kernels.certified_head import triton_kernel

    weight = head_weight(v, k, 3).cuda()
    x = rows(weight.cpu(), m, 3).cuda()
    head = op.prepare(weight, tiles=False)
    every = triton_kernel.argmax(x, head, capacity=0)  # the list overflows at once: every score is computed
    tile = triton_kernel.TILE if rows_first else triton_kernel.WEIGHTS_FIRST
    assert torch.equal(triton_kernel.argmax(x, head, capacity, tile), every)
