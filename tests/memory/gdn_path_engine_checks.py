"""The entry `gdn-path-verify` inside the real SGLang 0.5.20 on a CPU: chains through its kernels have stock's bits.

`test_gdn_path_verify.py` runs this file in the patched tree, as `gdn_commit_engine_checks.py` is run.
"""

from __future__ import annotations

from typing import Any

import gdn_commit_engine_checks as base
import pytest
import torch
from gdn_commit_engine_checks import published  # noqa: F401
from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
from sglang.srt.layers.attention.linear import gdn_commit
from sglang.srt.layers.attention.linear.gdn_commit import switch
from sglang.srt.layers.attention.linear.gdn_commit.tree_rows import TreeRows


@pytest.fixture(autouse=True)
def trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches of a server that verifies trees."""
    monkeypatch.setenv(switch.VARIABLE, "triton")
    monkeypatch.setenv(switch.TREE, "path")


def test_the_switch_needs_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gdn_commit.tree_variant() == "path" and gdn_commit.rows_class() is TreeRows
    monkeypatch.setenv(switch.VARIABLE, "off")
    with pytest.raises(ValueError, match="SGLANG_GDN_TREE=path needs"):
        switch.tree_variant()
    monkeypatch.setenv(switch.TREE, "off")
    assert gdn_commit.rows_class() is gdn_commit.StepRows


def test_a_pool_of_trees_has_no_windows() -> None:
    pool = base.request_pool(True).mamba_pool
    assert isinstance(pool.gdn_rows, TreeRows) and pool.gdn_rows.trees
    assert pool.mamba_cache.intermediate_ssm is None and pool.mamba_cache.intermediate_conv_window[0].numel() == 0
    assert pool.mamba2_layer_cache(1).intermediate_conv_window[0].numel() == 0
    kept = pool.gdn_rows
    assert kept.nbytes == sum(t.nbytes for t in (kept.mixed, kept.raw, kept.a, kept.b))
    requests = base.REQUESTS + 1
    assert kept.nbytes == requests * switch.request_bytes(base.params(), base.ROWS)


def test_whole_steps_of_chains_have_stocks_bits() -> None:
    """Convolution, recurrence, states and windows through the backends; prefixes tracked on the way."""
    stock, ours = base.Engine(False), base.Engine(True)
    generator = torch.Generator().manual_seed(3)
    for number in range(3):
        tokens = (len(base.LAYER_IDS), base.REQUESTS * base.ROWS)
        sizes = (base.CHANNELS, base.VALUE_HEADS, base.VALUE_HEADS)
        rows = [torch.randn(*tokens, c, generator=generator) for c in sizes]
        before = [tensor.clone() for tensor in state(ours)]
        made = ours.verify(rows)
        assert all(torch.equal(one, two) for one, two in zip(before, state(ours), strict=True)), "verification writes"
        for one, two in zip(stock.verify(rows), made, strict=True):
            assert torch.equal(one, two) and one.abs().max() > 0
        commit_the_same(stock, ours, generator, tracked=number > 0)


def state(engine: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """All committed states and windows."""
    caches = engine.pool.mamba_pool.mamba_cache
    return caches.temporal, caches.conv[0]


def test_a_batch_larger_than_the_pool_is_refused() -> None:
    engine = base.Engine(True)
    with pytest.raises(ValueError, match="room for 4 requests"):
        engine.pool.mamba_pool.gdn_rows.plant(torch.zeros(5, base.ROWS - 1, dtype=torch.int32))


def commit_the_same(stock: Any, ours: Any, generator: torch.Generator, tracked: bool) -> None:
    """Both commit drawn rows; states and windows are then the same to the last bit. tracked: prefixes are kept too."""
    last = torch.randint(0, base.ROWS, (base.REQUESTS,), generator=generator)
    track = (torch.tensor([7, 8, 9]), torch.tensor([0, -1, int(last[2])])) if tracked else (None, None)
    with pytest.MonkeyPatch.context() as patched:  # stock's takes no CPU tensors
        patched.setattr(hybrid, "scatter_mamba_states_after_mtp_verify", base.scattered)
        stock.commit(last, *track)
    ours.commit(last, *track)
    for one, two in zip(state(stock), state(ours), strict=True):
        assert torch.equal(one, two)
