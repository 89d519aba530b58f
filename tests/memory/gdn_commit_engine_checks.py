"""The entry `gdn-commit` inside the real SGLang 0.5.20 on a CPU: pools, memory budget, refusals, whole verify steps.

`test_gdn_commit.py` runs this file in the patched tree, in an interpreter that has SGLang's dependencies. Kernels run
in Triton's interpreter, in float32; the engine's own scatter takes tensors of a GPU only, plain torch stands for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.kernels.ops.attention.fla import fused_sigmoid_gating_recurrent as recurrent
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.layers.attention import hybrid_linear_attn_backend as hybrid
from sglang.srt.layers.attention.linear import gdn_backend, gdn_commit
from sglang.srt.layers.attention.linear.gdn_commit import switch
from sglang.srt.layers.attention.linear.utils import LinearAttnBackends, LinearAttnKernelBackend
from sglang.srt.layers.radix_linear_attention import RadixLinearAttention
from sglang.srt.mem_cache.kv_cache_configurator import KVCacheConfigurator
from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context, get_parallel

LAYER_IDS, ROWS, REQUESTS = (0, 1, 3), 4, 3
HEADS, VALUE_HEADS, WIDTH, TAPS = 1, 2, 16, 4
CHANNELS = (2 * HEADS + VALUE_HEADS) * WIDTH
GIVEN = {
    "device": "cpu",
    "disable_radix_cache": True,
    "linear_attn_backend": "triton",
    "max_running_requests": REQUESTS,
    "speculative_algorithm": "DFLASH",
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": ROWS,
}


@pytest.fixture(scope="module", autouse=True)
def published() -> Iterator[None]:
    """A server's configuration."""
    alone = {"tp_rank": 0, "tp_size": 1, "attn_tp_rank": 0, "attn_tp_size": 1}
    with get_context().override_server_args(**GIVEN), get_parallel().override(**alone):
        yield


def plain_range(*bounds: Any) -> range:
    """The interpreter makes no `range` of a tensor."""
    return range(*(int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds))


recurrent.range = plain_range


def params(conv: torch.dtype = torch.bfloat16, temporal: torch.dtype = torch.float32, width: int = WIDTH) -> Any:
    """Of a small model's Gated DeltaNet layers."""
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=VALUE_HEADS * width,
        n_groups=HEADS,
        num_heads=VALUE_HEADS,
        head_dim=width,
        state_size=width,
        conv_kernel=TAPS,
    )
    return Mamba2CacheParams(shape=shape, layers=list(LAYER_IDS), dtype=Mamba2StateDType(conv=conv, temporal=temporal))


def request_pool(keep: bool, conv: torch.dtype = torch.bfloat16) -> HybridReqToTokenPool:
    return HybridReqToTokenPool(
        size=REQUESTS,
        mamba_size=3 * REQUESTS,
        mamba_spec_state_size=REQUESTS,
        max_context_len=64,
        device="cpu",
        enable_memory_saver=False,
        cache_params=params(conv),
        mamba_layer_ids=list(LAYER_IDS),
        enable_mamba_extra_buffer=False,
        speculative_num_draft_tokens=ROWS,
        speculative_eagle_topk=1,
        enable_overlap_schedule=False,
        keep_gdn_rows=keep,
    )


def test_a_pool_that_keeps_rows_has_no_states_of_them() -> None:
    stock, ours = (request_pool(keep).mamba_pool for keep in (False, True))
    assert stock.gdn_rows is None and stock.mamba_cache.intermediate_ssm is not None
    assert isinstance(ours.gdn_rows, gdn_commit.StepRows) and ours.mamba_cache.intermediate_ssm is None
    states = stock.mamba_cache.intermediate_ssm
    assert states.shape == (3, REQUESTS + 1, ROWS, VALUE_HEADS, WIDTH, WIDTH)
    saved = (stock.mem_usage - ours.mem_usage) * (1 << 30)
    assert saved == pytest.approx(states.nbytes - ours.gdn_rows.nbytes, abs=1)
    layer = ours.mamba2_layer_cache(1)
    assert layer.intermediate_ssm is None and layer.intermediate_conv_window[0].shape[1:] == (ROWS, CHANNELS, TAPS - 1)


def configurator(**given: Any) -> Any:
    """What the switch and the budget read of the engine's configurator."""
    config = SimpleNamespace(mamba2_cache_params=params())
    found = {
        "is_draft_worker": False,
        "spec_algorithm": SimpleNamespace(is_none=lambda: False),
        "hybrid_gdn_config": config,
        "mambaish_config": config,
        "model_config": SimpleNamespace(hf_config=SimpleNamespace(get_text_config=lambda: None), num_hidden_layers=4),
        "ps": SimpleNamespace(pp_size=1, attn_dp_size=1),
    }
    made = SimpleNamespace(**found | given)
    made._calculate_mamba_ratio = lambda: KVCacheConfigurator._calculate_mamba_ratio(made)
    return made


def test_the_switch_is_off_by_default_and_only_for_targets_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(switch.VARIABLE, raising=False)
    assert not switch.keeps_rows(configurator())
    monkeypatch.setenv(switch.VARIABLE, "triton")
    assert switch.keeps_rows(configurator())
    for given in (
        {"is_draft_worker": True},
        {"hybrid_gdn_config": None},
        {"spec_algorithm": SimpleNamespace(is_none=lambda: True)},
    ):
        assert not switch.keeps_rows(configurator(**given))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"speculative_eagle_topk": 4}, "trees"),
        ({"speculative_adaptive": True}, "adaptive"),
        ({"enable_linear_replayssm_spec": True}, "replayssm"),
        ({"enable_unified_memory": True}, "unified"),
        ({"enable_page_major_kv_layout": True}, "page-major"),
        ({"disaggregation_mode": "decode"}, "disaggregation"),
    ],
)
def test_what_it_does_not_go_with_is_refused(given: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switch.VARIABLE, "cuda")
    with get_context().override_server_args(**GIVEN | given), pytest.raises(ValueError, match=says):
        switch.keeps_rows(configurator())


def test_types_and_sizes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switch.VARIABLE, "triton")
    switch.check_shapes(params(conv=torch.float32))
    monkeypatch.setenv(switch.VARIABLE, "cuda")
    switch.check_shapes(params())
    with pytest.raises(ValueError, match="float32"):
        switch.check_shapes(params(temporal=torch.bfloat16))
    with pytest.raises(ValueError, match="bfloat16"):
        switch.check_shapes(params(conv=torch.float32))
    with pytest.raises(ValueError, match="key heads"):
        switch.check_shapes(params(width=256))


def rest_gb(monkeypatch: pytest.MonkeyPatch, word: str, **given: Any) -> tuple[float, int]:
    """What the budget leaves of 8 GB for keys and values, and the slots for states."""
    from sglang.srt.runtime_context import get_schedule

    monkeypatch.setenv(switch.VARIABLE, word)
    with get_context().override_server_args(**GIVEN | given):
        left = KVCacheConfigurator._handle_max_mamba_cache(configurator(), 8.0)
        return left, int(get_schedule().max_mamba_cache_size)


def test_the_budget_reserves_rows_instead_of_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a radix cache: stock reserves a state and a window a draft token, for every request and one more."""
    given = {"disable_radix_cache": True, "max_running_requests": 200, "max_mamba_cache_size": None}
    (stock, slots), (ours, same) = (rest_gb(monkeypatch, word, **given) for word in ("off", "triton"))
    assert slots == same == 200
    of_request = params().mamba_cache_per_req * ROWS
    assert (ours - stock) * (1 << 30) == pytest.approx(
        201 * (of_request - switch.request_bytes(params(), ROWS)), rel=1e-9
    )


def test_with_a_radix_cache_the_budget_has_more_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"disable_radix_cache": False, "max_running_requests": 2, "max_mamba_cache_size": None}
    (_, slots), (_, more) = (rest_gb(monkeypatch, word, **given) for word in ("off", "triton"))
    assert more > 1.5 * slots


class Model(torch.nn.Module):
    """Layers of Gated DeltaNet, as the backend finds them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(
            RadixLinearAttention(
                layer_id=layer,
                num_q_heads=HEADS,
                num_k_heads=HEADS,
                num_v_heads=VALUE_HEADS,
                head_q_dim=WIDTH,
                head_k_dim=WIDTH,
                head_v_dim=WIDTH,
                conv_weights=torch.randn(CHANNELS, TAPS),
                activation="silu",
                A_log=torch.nn.Parameter(torch.randn(VALUE_HEADS)),
                dt_bias=torch.nn.Parameter(torch.randn(VALUE_HEADS)),
            )
            for layer in LAYER_IDS
        )


def scattered(caches: Any, slots: Any, last: Any, track_slots: Any, track_last: Any) -> None:
    """The engine's scatter in plain torch: states where they were stored, windows always."""
    for to, steps in ((slots, last), (track_slots, track_last)):
        for request, (slot, step) in enumerate(zip(to.tolist(), steps.tolist(), strict=True)) if to is not None else ():
            if slot >= 0 and step >= 0:
                if caches.intermediate_ssm is not None:
                    caches.temporal[:, slot] = caches.intermediate_ssm[:, request, step]
                caches.conv[0][:, slot] = caches.intermediate_conv_window[0][:, request, step]


class Engine:
    """The real backends on a pool, with and without the switch."""

    def __init__(self, keep: bool) -> None:
        self.pool, self.model = request_pool(keep, torch.float32), Model()
        mamba = self.pool.mamba_pool
        torch.manual_seed(1)
        mamba.mamba_cache.temporal.normal_()
        mamba.mamba_cache.conv[0].normal_()
        if keep:
            for name in ("mixed", "a", "b", "raw"):
                if hasattr(mamba.gdn_rows, name):
                    setattr(mamba.gdn_rows, name, getattr(mamba.gdn_rows, name).float())
            mamba.gdn_rows.variant = "triton"
        triton = LinearAttnKernelBackend("triton")
        runner = SimpleNamespace(
            server_args=SimpleNamespace(enable_mis=False),
            device="cpu",
            is_draft_worker=False,
            req_to_token_pool=self.pool,
            token_to_kv_pool=None,
            model=self.model,
            linear_attn_backends=LinearAttnBackends(decode=triton, prefill=triton, verify=triton),
        )
        self.linear = gdn_backend.GDNAttnBackend(runner)
        self.backend: Any = object.__new__(hybrid.HybridLinearAttnBackend)
        self.backend.linear_attn_backend = self.linear
        self.pool.req_index_to_mamba_index_mapping[1 : REQUESTS + 1] = torch.tensor([2, 3, 1], dtype=torch.int32)

    def verify(self, rows: list[torch.Tensor]) -> list[torch.Tensor]:
        """One verify step of all layers."""
        batch: Any = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=REQUESTS,
            req_pool_indices=torch.arange(1, REQUESTS + 1),
            input_ids=torch.zeros(REQUESTS * ROWS, dtype=torch.int64),
            spec_info=SimpleNamespace(draft_token_num=ROWS, ragged_verify_layout=None),
            multi_item_delimiter_indices=None,
            mamba_track_indices=None,
            mamba_track_mask=None,
            _original_batch_size=None,
            extend_start_loc=None,
            extend_seq_lens=None,
        )
        self.linear.init_forward_metadata(batch)
        raw, a, b = rows
        return [
            self.linear.forward_extend(layer, batch, raw[place].clone(), a[place].clone(), b[place].clone())
            for place, layer in enumerate(self.model.layers)
        ]

    def commit(self, last: torch.Tensor, track: Any, track_last: Any) -> None:
        self.backend.update_mamba_state_after_mtp_verify(last, track, track_last, self.model)


def test_whole_steps_through_the_backends_have_stocks_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`forward_extend` of every layer and the commit after acceptance, several steps, prefixes tracked on the way."""
    monkeypatch.setattr(hybrid, "scatter_mamba_states_after_mtp_verify", scattered)
    stock, ours = Engine(False), Engine(True)
    assert ours.linear.gdn_rows is ours.pool.mamba_pool.gdn_rows and stock.linear.gdn_rows is None
    generator = torch.Generator().manual_seed(2)
    start = ours.pool.mamba_pool.mamba_cache.temporal.clone()
    for number in range(3):
        tokens = (len(LAYER_IDS), REQUESTS * ROWS)
        rows = [torch.randn(*tokens, c, generator=generator) for c in (CHANNELS, VALUE_HEADS, VALUE_HEADS)]
        for one, two in zip(stock.verify(rows), ours.verify(rows), strict=True):
            assert torch.equal(one, two) and one.abs().max() > 0
        last = torch.randint(0, ROWS, (REQUESTS,), generator=generator)
        track = (None, None) if number == 0 else (torch.tensor([7, 8, 9]), torch.tensor([0, -1, int(last[2])]))
        for engine in (stock, ours):
            engine.commit(last, *track)
        for one, two in zip(*(e.pool.mamba_pool.mamba_cache.conv for e in (stock, ours)), strict=True):
            assert torch.equal(one, two)
        states = [e.pool.mamba_pool.mamba_cache.temporal for e in (stock, ours)]
        assert torch.equal(*states)
    changed = (states[1] != start).flatten(2).any(-1).all(0)
    assert changed.nonzero().flatten().tolist() == [1, 2, 3, 7, 9]


def test_another_kernel_for_verification_is_refused() -> None:
    engine = Engine(True)
    engine.linear.kernel_dispatcher.verify_kernel = object()
    with pytest.raises(ValueError, match="linear-attn-verify-backend triton"):
        engine.linear._attach_gdn_rows(SimpleNamespace(model=engine.model))


def test_rows_of_another_number_and_padded_batches() -> None:
    kept = request_pool(True).mamba_pool.gdn_rows
    assert kept.layer(0, REQUESTS + 2, ROWS) is None, "a batch padded past the pool is verified and not kept"
    with pytest.raises(ValueError, match="the pool keeps 4"):
        kept.layer(0, 1, ROWS - 1)
    with pytest.raises(ValueError, match="SGLANG_MAMBA_CONV_DTYPE"):
        kept.layer(0, 1, ROWS, torch.float32)
    assert replace(kept.sizes, requests=1).mixed == CHANNELS
