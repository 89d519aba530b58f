"""Bookkeeping of the kept rows, against loops: paths, lengths, places, bytes, and the CUDA launch's arguments."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[3] / "kernels" / "_testing")]
import rooms  # noqa: E402

rows_of, native, switch = rooms.part("rows"), rooms.part("native"), rooms.part("switch")


def layers(count: int, sizes: Any) -> list[Any]:
    """What the kept rows read of an engine's layers."""
    return [
        SimpleNamespace(
            A_log=torch.nn.Parameter(torch.randn(sizes.value_heads)),
            dt_bias=torch.nn.Parameter(torch.randn(sizes.value_heads).bfloat16()),
            num_k_heads=sizes.heads,
            num_v_heads=sizes.value_heads,
            head_k_dim=sizes.width,
            head_v_dim=sizes.height,
        )
        for _ in range(count)
    ]


class Walked(rows_of.StepRows):
    """Notes what would be walked."""

    def _walk(self, state: Any, slots: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor) -> None:
        rows = [tuple(own[:length].tolist()) for own, length in zip(path, lengths.tolist(), strict=True)]
        found = dict(zip(slots.tolist(), rows, strict=True))
        self.walked = {slot: path for slot, path in found.items() if slot >= 0 and path}


def test_which_rows_are_walked() -> None:
    torch.manual_seed(0)
    sizes = rows_of.Sizes(2, 6, 7, 1, 2, 16, 16)
    kept = Walked(sizes, "triton", "cpu")
    for _ in range(50):
        requests = int(torch.randint(1, 7, ()))
        slots = (torch.randperm(12)[:requests] - 2).int()
        last = torch.randint(-1, 7, (requests,))
        kept.commit(None, slots, last)
        pairs = list(zip(slots.tolist(), last.tolist(), strict=True))
        expected = {slot: tuple(range(end + 1)) for slot, end in pairs if slot >= 0 and end >= 0}
        assert kept.walked == expected
        path = torch.stack([torch.randperm(7)[:5].sort().values for _ in pairs])
        kept.commit(None, slots, last.clamp(max=4), path)
        expected = {
            slot: tuple(own[: min(end, 4) + 1].tolist())
            for (slot, end), own in zip(pairs, path, strict=True)
            if slot >= 0 and end >= 0
        }
        assert kept.walked == expected


def test_places_of_layers_and_requests_do_not_overlap() -> None:
    sizes = rows_of.Sizes(3, 4, 5, 2, 4, 16, 32)
    kept = rows_of.StepRows(sizes, "triton", "cpu")
    assert sizes.mixed == 2 * 2 * 16 + 4 * 32 and kept.layer(0, 5, 5) is None
    for place in range(3):
        for requests in (1, 4):
            given = kept.layer(place, requests, 5)
            given.mixed.add_(1)
            given.a.add_(1)
            given.b.add_(1)
    wanted = torch.tensor([2.0] * 5 + [1.0] * 15)
    for tensor in (kept.mixed, kept.a, kept.b):
        assert torch.equal(tensor.float(), wanted[None, :, None].expand(tensor.shape))
    x = torch.empty(4, 5, sizes.mixed).transpose(1, 2)
    assert kept.layer(1, 4, 5).mixed.transpose(1, 2).stride() == torch.empty_like(x).stride()
    with pytest.raises(ValueError, match="4 rows a request, the pool keeps 5"):
        kept.layer(0, 1, 4)


def test_weights_become_views_and_stay_what_they_were() -> None:
    sizes = rows_of.Sizes(3, 1, 2, 1, 2, 16, 16)
    kept, given = rows_of.StepRows(sizes, "triton", "cpu"), layers(3, sizes)
    before = [(layer.A_log.clone(), layer.dt_bias.clone()) for layer in given]
    kept.attach(given)
    for place, (layer, (a_log, dt_bias)) in enumerate(zip(given, before, strict=True)):
        assert torch.equal(layer.A_log, a_log) and torch.equal(layer.dt_bias, dt_bias)
        with torch.no_grad():
            layer.A_log.copy_(a_log + 1)  # as new weights are loaded
        assert torch.equal(kept.a_log[place], a_log + 1)
    with pytest.raises(ValueError, match="3 layers with heads"):
        rows_of.StepRows(sizes, "triton", "cpu").attach(given[:2])


def test_bytes_of_the_27b_shape() -> None:
    """48 layers of 10,240 channels and 48 heads, 8 rows: 17.8 MB a request, where stock's states are 1,208 MB."""
    shape = SimpleNamespace(conv=[(10240, 3)], temporal=(48, 128, 128))
    dtype = SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32)
    params = SimpleNamespace(shape=shape, dtype=dtype, layers=list(range(48)))
    assert switch.request_bytes(params, 8) == 48 * 2 * (8 * (10240 + 96) + 10240 * 10) == 17_768_448
    kept = rows_of.StepRows.of_pool(params, layers=48, requests=2, rows=8, variant="cuda", device="meta")
    assert kept.nbytes == 2 * 48 * 2 * 8 * (10240 + 96)
    assert (kept.sizes.heads, kept.sizes.keys_at, kept.sizes.values_at) == (16, 2048, 4096)


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switch.VARIABLE, raising=False)
    assert switch.variant() == "off"
    monkeypatch.setenv(switch.VARIABLE, "cuda")
    assert switch.variant() == "cuda"
    monkeypatch.setenv(switch.VARIABLE, "1")
    with pytest.raises(ValueError, match="off, triton, cuda"):
        switch.variant()


def test_the_launch_says_what_the_kernels_own_caller_says() -> None:
    """The CUDA source on a CPU (`emulate.hpp`) moves the states to the same bits, whoever describes the problem."""
    from mount import mount

    mount()
    from specpilot_kernels.gdn_tree import native as own
    from specpilot_kernels.gdn_tree.reference import Inputs

    assert own.Problem._fields_[5:] == native.Problem._fields_[5:]
    assert [name for name, _ in own.Source._fields_] == [name for name, _ in native.Source._fields_]
    if shutil.which(own.command(own.HOST, 16)[0]) is None:
        pytest.skip("needs a C++ compiler")
    torch.manual_seed(0)
    sizes = rows_of.Sizes(2, 3, 4, 2, 4, 16, 32)
    kept = rows_of.StepRows(sizes, "cuda", "cpu")
    kept.attach(layers(2, sizes))
    for tensor in (kept.mixed, kept.a, kept.b):
        tensor.normal_()
    state = torch.randn(2, 6, 4, 32, 16)
    before, expected = state.clone(), state.clone()
    calls = own.functions(own.HOST, 16)
    module = SimpleNamespace(commit=lambda problem, ahead, stream: calls.gdn_tree_commit(problem, ahead, stream))
    kept._native = native.Commit(kept, state, module)
    slots, last = torch.tensor([4, -1, 0], dtype=torch.int32), torch.tensor([2, 3, 0])
    path = torch.tensor([[0, 2, 3, 0], [0, 1, 2, 3], [0, 0, 0, 0]])
    kept.commit(state, slots, last, path)

    def heads(at: int, count: int, width: int) -> torch.Tensor:
        rows = kept.mixed[..., at : at + count * width].unflatten(1, (3, 4))
        return rows.unflatten(-1, (count, width))

    gates = [tensor.unflatten(1, (3, 4)) for tensor in (kept.a, kept.b)]
    q, k, v = heads(0, 2, 16), heads(sizes.keys_at, 2, 16), heads(sizes.values_at, 4, 32)
    own.commit_layers(Inputs(q, k, v, *gates, kept.a_log, kept.dt_bias), expected, slots, path, (last + 1).int())
    assert torch.equal(state, expected)
    changed = (state != before).flatten(2).any(-1)
    assert changed.tolist() == [[True, False, False, False, True, False]] * 2
