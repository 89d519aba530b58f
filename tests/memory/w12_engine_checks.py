"""The method inside the real SGLang 0.5.20 on a CPU, with the torch reference of the kernels.

`test_w12_linear.py` runs this file in the patched tree, in an interpreter that has SGLang's dependencies.
"""

from __future__ import annotations

import json
import logging
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.configs.qwen3_5 import Qwen3_5TextConfig
from sglang.srt.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from sglang.srt.layers.quantization.unquant import UnquantizedLinearMethod
from sglang.srt.layers.quantization.w12 import W12Config, W12LoadError, guard, linear, region, torch_codec
from sglang.srt.layers.quantization.w12.checkpoint import PARTS, unpacked
from sglang.srt.layers.quantization.w12.prepare import restore
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.models import qwen3_5
from sglang.srt.models.qwen3_5 import Qwen3_5GatedDeltaNet
from sglang.srt.runtime_context import get_context, get_device, get_disagg, get_exec, get_parallel

TP = 2


@pytest.fixture(scope="module", autouse=True)
def published() -> Iterator[None]:
    """A server's configuration, and BF16 as the type of new parameters."""
    alone = {"tp_rank": 0, "tp_size": 1, "attn_tp_rank": 0, "attn_tp_size": 1}
    with get_context().override_server_args(device="cpu"), get_parallel().override(**alone):
        torch.set_default_dtype(torch.bfloat16)
        yield
        torch.set_default_dtype(torch.float32)


def weights(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Gaussian weights with zeros, denormals, infinities, NaNs and weights far outside their channel's window."""
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float32) * 0.02
    for column, value in enumerate((0.0, -0.0, 1e-39, 2e-20, 1e4, float("inf"), float("nan"))):
        made[5::9, column] = value
    return made.bfloat16()


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(one.contiguous().view(torch.int16), two.contiguous().view(torch.int16))


Load = Callable[[torch.nn.Module], None]


def loaded(make: Callable[[Any], torch.nn.Module], load: Load) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The layer unquantized, and packed after the same loading."""
    plain, packed = make(None), make(W12Config())
    for layer in (plain, packed):
        load(layer)
        layer.quant_method.process_weights_after_loading(layer)
    return plain, packed


def assert_same_layer(plain: torch.nn.Module, packed: torch.nn.Module, rows: int = 5) -> None:
    assert isinstance(packed.quant_method, linear.W12LinearMethod) and packed.weight is None
    assert same(restore(packed.w12), plain.weight)
    stored = sum(p.numel() * p.element_size() for n, p in packed.named_parameters() if n.startswith("w12_"))
    whole = plain.weight.numel() * 16
    assert 8 * stored < 0.9 * whole or plain.weight.shape[0] % 128 or plain.weight.shape[1] % 64
    x = torch.randn(rows, plain.weight.shape[1], dtype=torch.float32).bfloat16()
    bias = plain.bias.data if plain.bias is not None else None
    ours, theirs = packed.quant_method.apply(packed, x, bias), plain.quant_method.apply(plain, x, bias)
    assert same(ours.nan_to_num(7.0), theirs.nan_to_num(7.0))


@pytest.mark.parametrize("bias", [False, True])
def test_a_plain_layer(bias: bool) -> None:
    def load(layer: torch.nn.Module) -> None:
        layer.weight_loader(layer.weight, weights(256, 128))
        if bias:
            layer.weight_loader(layer.bias, weights(1, 256, seed=1)[0])

    plain, packed = loaded(lambda config: ReplicatedLinear(128, 256, bias=bias, quant_config=config, prefix="a"), load)
    assert_same_layer(plain, packed)
    assert_same_layer(plain, packed, rows=300)


@pytest.mark.parametrize("rank", range(TP))
def test_gate_up_merged_and_sharded(rank: int) -> None:
    gate, up = weights(192, 128, 1), weights(192, 128, 2)

    def make(config: Any) -> torch.nn.Module:
        return MergedColumnParallelLinear(
            128, [192, 192], bias=False, quant_config=config, prefix="mlp.gate_up_proj", tp_rank=rank, tp_size=TP
        )

    def load(layer: torch.nn.Module) -> None:
        layer.weight.weight_loader(layer.weight, gate, 0)
        layer.weight.weight_loader(layer.weight, up, 1)

    plain, packed = loaded(make, load)
    assert same(plain.weight, torch.cat([part.chunk(TP)[rank] for part in (gate, up)]))
    assert_same_layer(plain, packed)


@pytest.mark.parametrize("rank", range(TP))
def test_qkv_merged_sharded_and_biased(rank: int) -> None:
    parts = {"q": weights(256, 128, 1), "k": weights(128, 128, 2), "v": weights(128, 128, 3)}

    def make(config: Any) -> torch.nn.Module:
        heads: dict[str, Any] = {"total_num_heads": 8, "total_num_kv_heads": 4, "bias": True, "quant_config": config}
        return QKVParallelLinear(128, 32, **heads, prefix="self_attn.qkv_proj", tp_rank=rank, tp_size=TP)

    def load(layer: torch.nn.Module) -> None:
        for shard, weight in parts.items():
            layer.weight.weight_loader(layer.weight, weight, shard)
            layer.bias.weight_loader(layer.bias, weight[:, 9].clone(), shard)

    plain, packed = loaded(make, load)
    assert same(plain.weight, torch.cat([part.chunk(TP)[rank] for part in parts.values()]))
    assert_same_layer(plain, packed)


@pytest.mark.parametrize("rank", range(TP))
def test_rows_and_columns_sharded(rank: int) -> None:
    weight = weights(256, 256)
    shard: dict[str, Any] = {"bias": False, "tp_rank": rank, "tp_size": TP}

    def load(layer: torch.nn.Module) -> None:
        layer.weight.weight_loader(layer.weight, weight)

    for kind, dim in ((RowParallelLinear, 1), (ColumnParallelLinear, 0)):
        plain, packed = loaded(lambda c, kind=kind: kind(256, 256, quant_config=c, prefix="o", **shard), load)
        assert same(plain.weight, weight.chunk(TP, dim)[rank])
        assert_same_layer(plain, packed)


@pytest.mark.parametrize("rank", range(TP))
def test_the_merged_in_proj_of_qwen3_5(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """q, k, v of `in_proj_qkv` and z of `in_proj_z` in one matrix; `in_proj_ba` is too small to pack."""
    config = Qwen3_5TextConfig(hidden_size=128, linear_num_value_heads=4, linear_num_key_heads=2)
    config.linear_key_head_dim = config.linear_value_head_dim = 64
    config.linear_num_value_heads_cpu, config.linear_num_key_heads_cpu = 4, 2
    key, value = 128, 256
    qkv, z, ba = weights(2 * key + value, 128, 1), weights(value, 128, 2), weights(8, 128, 3)

    def make(quantization: Any) -> torch.nn.Module:
        shard = {"tp_rank": rank, "tp_size": TP, "attn_tp_rank": rank, "attn_tp_size": TP}
        with get_parallel().override(**shard):
            block = Qwen3_5GatedDeltaNet(config, 0, quant_config=quantization, prefix="model.layers.0.linear_attn")
        block.in_proj_qkvz.block = [block]  # not a child of its own child
        return block.in_proj_qkvz

    def load(layer: torch.nn.Module) -> None:
        layer.weight.weight_loader(layer.weight, qkv, (0, 1, 2))
        layer.weight.weight_loader(layer.weight, z, 3)
        small = layer.block[0].in_proj_ba
        small.weight.weight_loader(small.weight, ba[:4], 0)
        small.weight.weight_loader(small.weight, ba[4:], 1)
        small.quant_method.process_weights_after_loading(small)

    plain, packed = loaded(make, load)
    split = (*qkv.split([key, key, value]), z)
    assert same(plain.weight, torch.cat([part.chunk(TP)[rank] for part in split]))
    assert_same_layer(plain, packed)
    block = packed.block[0]
    monkeypatch.setattr(qwen3_5, "_is_cuda", True)  # the fusion is for GPUs
    fused = [one.block[0].finalize_fused_in_proj() or one.block[0]._fused_in_proj_weight for one in (plain, packed)]
    assert fused[0] is not None and fused[1] is None, "nothing reads a BF16 copy past the packed weight"
    assert block.in_proj_ba.w12 is None and same(block.in_proj_ba.weight, plain.block[0].in_proj_ba.weight)
    x = torch.randn(3, 128, dtype=torch.float32).bfloat16()
    ours, theirs = (one.block[0].in_proj_ba for one in (packed, plain))
    assert torch.equal(
        ours.quant_method.apply(ours, x).nan_to_num(1.0), theirs.quant_method.apply(theirs, x).nan_to_num(1.0)
    )


@pytest.mark.parametrize("part", ["records", "window_low", "patches", "hard_bits"])
def test_a_flipped_bit_is_refused_by_tensor_and_channel(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, weight = linear.prepare, weights(384, 128)

    def damaged(packed: Any) -> Any:
        prepared = prepare(packed)
        data = getattr(prepared, part).view(torch.uint8).flatten()
        data[int(data.nonzero()[-1])] ^= 1
        return prepared

    layer = ReplicatedLinear(128, 384, bias=False, quant_config=W12Config(), prefix="model.layers.7.mlp.down_proj")
    layer.weight_loader(layer.weight, weight)
    monkeypatch.setattr(linear, "prepare", damaged)
    with pytest.raises(W12LoadError, match=r"model\.layers\.7\.mlp\.down_proj\.weight, channel \d+") as raised:
        layer.quant_method.process_weights_after_loading(layer)
    monkeypatch.setattr(linear, "prepare", prepare)
    wrong = damaged(torch_codec.pack(weight))
    differs = (restore(wrong).view(torch.int16) != weight.view(torch.int16)).any(1).nonzero()
    assert raised.value.channel == int(differs[0]) and same(layer.weight, weight), "the first channel that differs"


def test_embedding_and_head_stay_bf16() -> None:
    for kind in (VocabParallelEmbedding, ParallelLMHead):
        layer = kind(512, 128, quant_config=W12Config(), prefix="lm_head")
        assert type(layer.quant_method).__name__ == "UnquantizedEmbeddingMethod"
        assert layer.weight.dtype == torch.bfloat16


def test_routed_experts_stay_bf16() -> None:
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    with get_parallel().override(moe_ep_rank=0, moe_ep_size=1, moe_tp_rank=0, moe_tp_size=1):
        sizes = {"num_experts": 4, "hidden_size": 128, "intermediate_size": 128, "layer_id": 0, "top_k": 2}
        layer = FusedMoE(**sizes, quant_config=W12Config(), prefix="mlp.experts")
    assert type(layer.quant_method).__name__ == "UnquantizedFusedMoEMethod"
    assert {parameter.dtype for parameter in layer.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("prefix", ["visual.blocks.0.attn.qkv_proj", "model.layers.0.mlp.shared_expert.gate_up_proj"])
def test_layers_that_are_left_alone(prefix: str) -> None:
    layer = ReplicatedLinear(128, 256, bias=False, quant_config=W12Config(), prefix=prefix)
    assert isinstance(layer.quant_method, UnquantizedLinearMethod)


def test_two_streams_at_once_are_refused() -> None:
    for bag, name in ((get_disagg(), "enable_pdmux"), (get_exec().overlap, "enable_two_batch_overlap")):
        with bag.override(**{name: True}), pytest.raises(ValueError, match=name.replace("_", "-")):
            ReplicatedLinear(128, 256, bias=False, quant_config=W12Config(), prefix="a")


def test_a_running_server_takes_no_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.model_executor.model_runner_components import weight_updater

    monkeypatch.setattr(linear, "_count", linear.Count())
    assert weight_updater._unsupported_derived_weight_cache_error() is None
    layer = ReplicatedLinear(128, 256, bias=False, quant_config=W12Config(), prefix="a")
    layer.weight_loader(layer.weight, weights(256, 128))
    layer.quant_method.process_weights_after_loading(layer)
    assert "w12" in str(weight_updater._unsupported_derived_weight_cache_error())


def test_only_bf16_is_packed() -> None:
    with pytest.raises(ValueError, match="packs BF16"):
        ReplicatedLinear(128, 256, bias=False, params_dtype=torch.float16, quant_config=W12Config(), prefix="a")


@pytest.mark.parametrize(("asked", "given"), [(None, None), ("w12", "w12"), ("fp8", "fp8"), ("unquant", None)])
def test_the_drafter_is_packed_only_where_that_is_asked_for(asked: str | None, given: str | None) -> None:
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.arg_groups.serving_hook import handle_missing_default_values
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cpu", quantization="w12", speculative_draft_model_quantization=asked)
    handle_missing_default_values(args)
    assert resolving_view(args).speculative_draft_model_quantization == given
    assert resolving_view(args).quantization == "w12"


def parts_of(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """The parts of a packed checkpoint, as safetensors gives them."""
    packed = torch_codec.pack(weight)
    sums = [zlib.crc32(row) for row in weight.view(torch.int16).numpy()]
    check = torch.tensor(sums, dtype=torch.int64).to(torch.uint32)
    return {part: getattr(packed, part).clone() for part in PARTS[:-1]} | {"check": check}


def stream(**named: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parts of several tensors, mixed as files mix them, with a tensor that is not packed."""
    for part in PARTS:
        for name, parts in named.items():
            if part in parts:
                yield f"{name}.w12.{part}", parts[part]
    yield "norm.weight", torch.ones(4)


@pytest.mark.parametrize("columns", [128, 72, 200])
def test_a_packed_checkpoint_is_what_it_was_made_from(columns: int) -> None:
    one, two = weights(300, columns, 1), weights(128, columns, 2)
    found = dict(unpacked(stream(one=parts_of(one), two=parts_of(two))))
    assert set(found) == {"one", "two", "norm.weight"}
    assert same(found["one"], one) and same(found["two"], two)


@pytest.mark.parametrize("part", PARTS)
def test_a_damaged_pack_is_refused(part: str) -> None:
    parts = parts_of(weights(300, 128))
    data = parts[part].view(torch.uint8).flatten()
    data[data.numel() // 2] ^= 2
    with pytest.raises(W12LoadError, match=r"model\.q"):
        dict(unpacked(stream(**{"model.q": parts})))
    del parts[part]
    with pytest.raises(W12LoadError, match=rf"model\.q: {part} is missing"):
        dict(unpacked(stream(**{"model.q": parts})))


def test_a_damaged_record_names_its_channel() -> None:
    parts = parts_of(weights(300, 128))
    parts["records"][1, 0, 0] ^= 16  # tile 1, half 0, first thread, mantissa bit 4 of pair 0: channel 128
    with pytest.raises(W12LoadError) as raised:
        dict(unpacked(stream(q=parts)))
    assert raised.value.channel == 128


@pytest.mark.parametrize(("capability", "on"), [((9, 0), True), ((8, 0), False), ((10, 0), False), ((12, 0), False)])
def test_on_a_gpu_it_is_on_where_the_entry_holds(
    capability: tuple[int, int], on: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(guard, "_said", set())
    region._architecture.cache_clear()
    with get_device().override(device="cuda"):
        assert [region.holds_here() for _ in range(3)] == [on] * 3
    region._architecture.cache_clear()
    name = f"sm{capability[0]}{capability[1]}"
    said = [record.getMessage() for record in caplog.records if record.name == "specpilot.w12-linear"]
    assert said == ([] if on else [f"w12-linear is off: devices {name} not in sm90"]), "once"


def test_without_a_gpu_it_is_off_unless_the_reference_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not region.holds_here()
    monkeypatch.setenv("SGLANG_W12_REFERENCE", "1")
    assert region.holds_here()


def test_the_log_says_when_all_are_packed_and_what_was_left(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(linear, "_count", linear.Count())
    layers = [
        ReplicatedLinear(128, rows, bias=False, quant_config=W12Config(), prefix=str(rows)) for rows in (256, 8, 384)
    ]
    with caplog.at_level(logging.INFO):
        for layer in layers:
            assert not caplog.records
            layer.weight_loader(layer.weight, weights(layer.weight.shape[0], 128))
            layer.quant_method.process_weights_after_loading(layer)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["w12: 2 linear weights packed"]
    assert "1 too small" in caplog.records[0].getMessage()


def test_a_checkpoint_that_is_quantized_already_is_refused(tmp_path: Path) -> None:
    from sglang.srt.configs.model_config import ModelConfig

    config = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "quantization_config": {}}
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"\(fp8\) does not match .* argument \(w12\)"):
        ModelConfig(model_path=str(tmp_path), quantization="w12")
