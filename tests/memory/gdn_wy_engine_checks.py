"""The entry `gdn-wy-verify` inside the real SGLang 0.5.20 on a CPU: whole steps through the engine's backends.

`test_gdn_wy_verify.py` runs this file in the patched tree, as `gdn_commit_engine_checks.py` is run. Every output is
held to the float64 reference within the bound of `kernels/gdn_tree/cases.py`, from the rows that the convolution left.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gdn_commit_engine_checks as base
import pytest
import torch
from gdn_commit_engine_checks import published  # noqa: F401
from gdn_path_engine_checks import commit_the_same, state
from sglang.srt.layers.attention.linear.gdn_commit import switch, tree_rows

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels" / "_testing"))
from mount import mount

mount()
from specpilot_kernels.gdn_tree import cases, reference  # noqa: E402

LAYERS = len(base.LAYER_IDS)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The switches of a server that verifies all paths at once."""
    for name, word in ((switch.VARIABLE, "triton"), (switch.TREE, "path"), (switch.WY, "triton")):
        monkeypatch.setenv(name, word)


def drawn(generator: torch.Generator) -> list[torch.Tensor]:
    """Raw rows and gates of one step of all layers."""
    tokens = (LAYERS, base.REQUESTS * base.ROWS)
    return [torch.randn(*tokens, c, generator=generator) for c in (base.CHANNELS, base.VALUE_HEADS, base.VALUE_HEADS)]


def case_of(engine: Any, place: int, parents: torch.Tensor) -> cases.Case:
    """What a layer's kernel was given, from the rows that are kept for the commit."""
    kept = engine.pool.mamba_pool.gdn_rows
    shape = (base.REQUESTS, base.ROWS)
    rows = kept.layer(place, *shape)
    keys, heads = base.HEADS * base.WIDTH, (base.VALUE_HEADS, base.WIDTH)
    q, k, v = rows.mixed.split([keys, keys, base.VALUE_HEADS * base.WIDTH], -1)
    q, k = (t.view(*shape, base.HEADS, base.WIDTH) for t in (q, k))
    gates = (rows.a.view(*shape, -1), rows.b.view(*shape, -1), kept.a_log[place], kept.dt_bias[place])
    slots = torch.tensor([2, 3, 1], dtype=torch.int32)
    return cases.Case(
        reference.Inputs(q, k, v.view(*shape, *heads), *gates), state(engine)[0][place], slots, parents, 0.25
    )


def share(engine: Any, place: int, parents: torch.Tensor, found: torch.Tensor) -> float:
    """Of the bound, for one layer's outputs `[1, B * N, HV, V]`."""
    case = case_of(engine, place, parents)
    exact = reference.verify(case.x.to(torch.float64), case.before, case.parents, case.scale)
    return cases.worst(found.view(exact.shape), exact, cases.error_bound(case))


def test_whole_steps_of_chains_leave_stocks_states() -> None:
    """Outputs within the bound; committed states and windows are stock's to the last bit, since the commit walks."""
    stock, ours = base.Engine(False), base.Engine(True)
    chains = torch.arange(-1, base.ROWS - 1).repeat(base.REQUESTS, 1)
    generator, differ = torch.Generator().manual_seed(3), 0
    for number in range(3):
        rows = drawn(generator)
        before = [tensor.clone() for tensor in state(ours)]
        made, expected = ours.verify(rows), stock.verify(rows)
        assert all(torch.equal(one, two) for one, two in zip(before, state(ours), strict=True)), "verification writes"
        for place, (one, two) in enumerate(zip(made, expected, strict=True)):
            assert share(ours, place, chains, one) <= 1 and share(ours, place, chains, two) <= 1
            assert one.abs().max() > 0
            differ += int((one != two).sum())
        commit_the_same(stock, ours, generator, tracked=number > 0)
    assert differ, "another order of sums rounds some outputs otherwise: else another kernel ran"


def test_trees_are_within_the_bound() -> None:
    ours, generator = base.Engine(True), torch.Generator().manual_seed(4)
    nodes = torch.tensor([[-1, -1, 0], [-1, 0, 0], [-1, 0, 1]], dtype=torch.int32)
    parents = torch.cat([torch.full((base.REQUESTS, 1), -1), nodes + 1], 1)
    ours.pool.mamba_pool.gdn_rows.plant(nodes)
    for place, one in enumerate(ours.verify(drawn(generator))):
        assert share(ours, place, parents, one) <= 1
        other = parents.clone()
        other[0, 2] = 1  # a sibling for the parent
        assert share(ours, place, other, one) > 1000


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = base.request_pool(True).mamba_pool.gdn_rows
    assert isinstance(kept, tree_rows.TreeRows) and kept.wy == "triton" and not kept.native_verify
    monkeypatch.setenv(switch.WY, "cuda")
    assert base.request_pool(True).mamba_pool.gdn_rows.native_verify
    switch.check_shapes(base.params())
    with pytest.raises(ValueError, match="bfloat16 for CUDA"):
        switch.check_shapes(base.params(conv=torch.float32))
    monkeypatch.setenv(switch.TREE, "off")
    with pytest.raises(ValueError, match="SGLANG_GDN_WY=cuda needs"):
        switch.check_shapes(base.params())
