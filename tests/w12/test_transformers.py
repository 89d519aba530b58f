"""W12 in Transformers on a CPU: the same greedy tokens, tied and shared weights, merging, refusals."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own import
    transformers = pytest.importorskip("transformers", minversion="5")

from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.w12.codec import codec
from specpilot_cli.w12.transformers import Decoder, merge, quantize
from specpilot_cli.w12.transformers.linear import W12Linear, product

PROMPT, TOKENS = 7, 24
SHAPE = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": False,
    "vocab_size": 300,
    "max_position_embeddings": 128,
}


def tiny(kind: str = "Llama", **more: Any) -> Any:
    """A model of random weights whose greedy output does not repeat itself at once."""
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**{**SHAPE, **more}, initializer_range=0.12)
    config._attn_implementation = more.get("_attn_implementation", "sdpa")
    return getattr(transformers, f"{kind}ForCausalLM")(config).bfloat16().eval().requires_grad_(False)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 300, (1, PROMPT), generator=torch.Generator().manual_seed(0))


def generated(model: Any, ids: Tensor, **more: Any) -> Tensor:
    out: Tensor = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **more,
    )
    return out[:, ids.shape[1] :]


@pytest.mark.parametrize("kind", ["Llama", "Qwen2", "Mistral", "Qwen3", "Gemma"])
@pytest.mark.parametrize("together", [False, True])
def test_a_quantized_model_generates_the_same_tokens(kind: str, together: bool, ids: Tensor) -> None:
    model = tiny(kind, **({"sliding_window": None} if kind == "Mistral" else {}))
    expected = generated(model, ids)
    assert len(expected.unique()) > 4
    report = quantize(model, merge=together)
    assert len(report.replaced) == (8 if together else 14)
    assert report.bytes_after < 0.8 * report.bytes_before
    assert torch.equal(generated(model, ids), expected)


@pytest.mark.parametrize(("kind", "fused"), [("Llama", True), ("Qwen2", True), ("Qwen3", False)])
def test_the_decoder_gives_the_tokens_of_generate(kind: str, fused: bool, ids: Tensor) -> None:
    model = tiny(kind)
    # the same kind of cache: attention over another number of slots rounds differently
    expected = generated(model, ids, cache_implementation="static", disable_compile=True)
    stock = Decoder(model, PROMPT + TOKENS)
    assert not stock.fused
    assert torch.equal(stock.greedy(ids, TOKENS), expected)
    quantize(model)
    for choice in (None, False):
        decoder = Decoder(model, PROMPT + TOKENS, fused=choice)
        assert decoder.fused == (fused and choice is None)
        for _ in range(2):  # a second run starts from a clean cache
            found = decoder.greedy(ids, TOKENS)
            first = (found != expected).nonzero()
            # the fused step sums attention in another order: a token may differ only where the best two are as near
            assert not len(first) or near(stock, decoder, ids, expected, found, int(first[0, 1]))


def test_attention_without_cudnn_is_a_choice_of_kernels_alone(ids: Tensor) -> None:
    model = tiny()
    one, two = (Decoder(model, PROMPT + 6, fused=False, cudnn=choice).greedy(ids, 6) for choice in (True, False))
    assert torch.equal(one, two)


def near(stock: Decoder, other: Decoder, ids: Tensor, expected: Tensor, found: Tensor, at: int) -> bool:
    """Whether the margin at token `at` is within what the logits moved there."""
    stock.greedy(ids, at + 1), other.greedy(ids, at + 1)
    ours, theirs = stock.logits[0].float(), other.logits[0].float()
    gap = ours[expected[0, at]] - ours[found[0, at]]
    return bool(gap <= 2 * (ours - theirs).abs().max()) and bool((ours - theirs).abs().max() < 0.05 * ours.std())


def test_several_sequences_decode_together(ids: Tensor) -> None:
    model = tiny()
    both = torch.cat((ids, ids.flip(1)))
    alone = [Decoder(model, 40).greedy(row[None], 8) for row in both]
    merge(model)
    decoder = Decoder(model, 40, rows=2)
    found = decoder.greedy(both, 8)
    assert decoder.fused
    assert torch.equal(found[:, 0], torch.cat(alone)[:, 0])
    assert (
        found != torch.cat(alone)
    ).sum() <= 8  # batched products round differently: a row may part, not both at once


def test_head_embeddings_and_tied_weights_stay(ids: Tensor) -> None:
    model = tiny(tie_word_embeddings=True)
    expected = generated(model, ids)
    report = quantize(model, skip="")
    assert report.left == ["lm_head"]
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert torch.equal(generated(model, ids), expected)


def test_what_is_skipped_is_neither_replaced_nor_merged() -> None:
    model = tiny()
    report = quantize(model, skip=r"layers\.0\.self_attn\.v_proj|lm_head")
    assert type(model.model.layers[0].self_attn.v_proj) is nn.Linear
    assert isinstance(model.model.layers[0].self_attn.q_proj, W12Linear)
    assert sorted(report.left) == ["lm_head", "model.layers.0.self_attn.v_proj"]


def test_a_layer_in_two_places_is_packed_once_and_odd_ones_stay() -> None:
    shared = nn.Linear(64, 128, bias=False).bfloat16()
    twin = nn.Linear(64, 128, bias=False).bfloat16()
    twin.weight = shared.weight
    table = nn.Embedding(128, 64).bfloat16()
    tied = nn.Linear(64, 128, bias=False).bfloat16()
    tied.weight = table.weight
    odd = {"narrow": nn.Linear(60, 128), "short": nn.Linear(64, 127), "wide": nn.Linear(64, 128).half()}
    model = nn.ModuleDict({"a": shared, "b": shared, "c": twin, "table": table, "tied": tied, **odd}).eval()
    report = quantize(model)
    assert model["a"] is model["b"] is model["c"]
    assert report.replaced == ["a", "b", "c"] and report.bytes_before == 2 * 64 * 128
    assert sorted(report.left) == ["narrow", "short", "tied", "wide"]


def test_merged_layers_are_right_in_any_order_of_calls() -> None:
    model = tiny("Qwen2")
    attention = copy.deepcopy(model).model.layers[0].self_attn
    assert merge(model) == 2 * (2 + 1)
    merged = model.model.layers[0].self_attn
    one, two = torch.randn(2, 1, 3, 128, generator=torch.Generator().manual_seed(2)).bfloat16()
    for name in ("v_proj", "q_proj", "k_proj"):
        assert torch.equal(getattr(merged, name).weight, getattr(attention, name).weight)
    for name, x in (("k_proj", one), ("q_proj", one), ("k_proj", two), ("v_proj", one), ("q_proj", two)):
        assert torch.allclose(getattr(merged, name)(x), getattr(attention, name)(x), rtol=2**-7, atol=2**-9)
    before = merged.q_proj(one)
    one.mul_(2)  # the same tensor, other contents: not the held product
    assert torch.allclose(merged.k_proj(one), attention.k_proj(one), rtol=2**-7, atol=2**-9)
    assert not torch.equal(merged.q_proj(one), before)


def test_a_deep_copy_of_a_merged_model_has_its_own_weights(ids: Tensor) -> None:
    model = tiny()
    merge(model)
    expected = generated(model, ids)
    twin = copy.deepcopy(model)
    assert twin.model.layers[0].mlp.up_proj.group is twin.model.layers[0].mlp.gate_proj.group
    assert twin.model.layers[0].mlp.up_proj.group is not model.model.layers[0].mlp.up_proj.group
    quantize(twin)
    assert isinstance(model.model.layers[0].mlp.gate_proj.group.product, nn.Linear)
    assert torch.equal(generated(twin, ids), expected)


@pytest.mark.parametrize("bias", [False, True])
def test_residual_and_bias(bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 130, bias=bias).bfloat16().eval()
    x, residual = torch.randn(3, 64).bfloat16(), torch.randn(3, 130).bfloat16()
    made = W12Linear(linear.weight.detach(), linear.bias, "w")
    assert torch.equal(made.weight.view(torch.int16), linear.weight.detach().view(torch.int16))
    with torch.no_grad():
        expected = residual + linear(x)
        own = residual.clone()
        assert product(made, x, own) is own and torch.equal(own, expected)
        other = residual.clone()
        assert torch.allclose(product(linear, x, other), expected, rtol=2**-7, atol=2**-8)
        assert made(x.view(3, 1, 64)).shape == (3, 1, 130)


def test_training_is_refused() -> None:
    made = W12Linear(torch.randn(128, 64).bfloat16(), None, "w")
    with pytest.raises(RuntimeError, match="for inference"):
        made(torch.randn(1, 64).bfloat16().requires_grad_())


def test_a_wrong_bit_after_packing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = codec().pack

    def damaged(weight: Tensor) -> Any:
        packed = right(weight)
        packed.records.view(-1)[12288 + 8192] ^= 1  # the second record: channel 0 or 8 of columns 64 and on
        return packed

    monkeypatch.setattr(codec(), "pack", damaged)
    with pytest.raises(InputUnusable, match=r"layers\.0\.self_attn\.q_proj\.weight, channel [08]:"):
        quantize(tiny(), merge=False)


def test_what_would_be_decoded_wrongly_is_refused() -> None:
    with pytest.raises(UsageFault, match="eager"):
        Decoder(tiny(_attn_implementation="eager"), 16)
    with pytest.raises(UsageFault, match="window"):
        Decoder(tiny("Mistral", sliding_window=8), 16)
    with pytest.raises(UsageFault, match="not merged"):
        Decoder(tiny(), 16, fused=True)
    with pytest.raises(UsageFault, match="Qwen3DecoderLayer"):
        Decoder(tiny("Qwen3"), 16, fused=True)
    decoder = Decoder(tiny(), 16)
    with pytest.raises(ValueError, match="do not fit"):
        decoder.greedy(torch.zeros(1, 10, dtype=torch.int64), 8)
    with pytest.raises(ValueError, match="prompts"):
        decoder.prefill(torch.zeros(2, 4, dtype=torch.int64))
