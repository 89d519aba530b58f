"""Tensors that a drafter's config.json promises, by name and shape.

DFLASH and DFLASH2: `srt/models/dflash.py:767-880`. DSPARK: `srt/models/dspark.py:550`.
"""

from __future__ import annotations

from specpilot_cli.lint.pair import Pair, as_int

Shape = tuple[int, ...] | None
"""None where the shape depends on what is not checked here."""
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Names that may stand for several."""
ALIASES = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
UNUSED = ("lm_head", "embed_tokens", "rotary")
"""Parts of names that the loader skips because the target has them."""
OWN_LAYERS = frozenset({"DFlashLagunaForCausalLM", "MuseGlimmerAssistantModel", "LingDSparkModel"})
MOST_LAYERS = 1000
"""More is a damaged config, not a drafter."""
DOMINO = ("prefix_gru.", "embed_proj.")
"""Domino heads, the only tensors that the loader misses (`srt/models/dflash.py:865-880`)."""
OPTIONAL = ("confidence_head.proj.weight", "confidence_head.proj.bias")
"""Read only when DSPARK's verification is ragged (`srt/models/dspark.py:455`)."""


def expected(pair: Pair) -> dict[str, Shape]:
    """Name → shape; empty where `unchecked` has a reason, or the config lacks a size."""
    sizes = _sizes(pair)
    if unchecked(pair) or sizes is None:
        return {}
    found: dict[str, Shape] = {}
    for layer in range(sizes["layers"]):
        found |= {f"layers.{layer}.{name}": shape for name, shape in _layer(pair, sizes).items()}
    hidden, features = sizes["hidden"], _features(pair)
    found |= {"fc.weight": (hidden, features * hidden) if features else None}
    found |= {"hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    if pair.kind == "DFLASH2":
        found |= _selector(pair, hidden)
    if pair.kind == "DSPARK":
        found |= _markov(pair)
    return found


def unchecked(pair: Pair) -> str:
    """Why this drafter's tensors have no known list; empty where they have one."""
    if not pair.parallel:
        return "it is no DFLASH, DFLASH2 or DSPARK drafter"
    if OWN_LAYERS.intersection(pair.drafter.architectures):
        return "its architecture has layers of its own"
    if "quantization_config" in pair.drafter.config:
        return "it is quantised"
    if pair.drafter.config.get("has_embed_tokens"):
        return "it has an embedding of its own (dflash_utils.py:470)"
    return ""


def _sizes(pair: Pair) -> dict[str, int] | None:
    config = pair.drafter
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    layers, inner = config.whole("num_hidden_layers"), config.whole("intermediate_size")
    if hidden is None or not heads or layers is None or inner is None or layers > MOST_LAYERS:
        return None
    kv = config.whole("num_key_value_heads") or heads
    return {
        "hidden": hidden, "layers": layers, "inner": inner, "head": config.whole("head_dim") or hidden // heads,
        "heads": heads, "kv": kv,
    }  # fmt: skip


def _layer(pair: Pair, sizes: dict[str, int]) -> dict[str, Shape]:
    hidden, head, inner = sizes["hidden"], sizes["head"], sizes["inner"]
    queries, keys = sizes["heads"] * head, sizes["kv"] * head
    found: dict[str, Shape] = {
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (head,),
        "self_attn.k_norm.weight": (head,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if pair.drafter.text.get("attention_bias"):
        found |= {f"self_attn.{name}_proj.bias": None for name in "qkvo"}
    if pair.kind == "DFLASH2":
        found |= _convolution(pair, hidden)
    return found


def _convolution(pair: Pair, hidden: int) -> dict[str, Shape]:
    taps, group = as_int(pair.inner("conv_kernel_size")), as_int(pair.inner("conv_group_size"))
    if not taps or not group:
        return {}
    found: dict[str, Shape] = {}
    for name in ("attention_conv", "mlp_conv"):
        found[f"{name}.base_kernel"] = (2, taps, hidden)
        found[f"{name}.kernel_projection.weight"] = (2 * taps * (hidden // group), hidden)
    return found


def _selector(pair: Pair, hidden: int) -> dict[str, Shape]:
    rank, vocab = as_int(pair.inner("selector_rank")), pair.drafter.whole("vocab_size")
    if not rank:
        return {}
    codes = (vocab, rank) if vocab else None
    return {
        "candidate_selector.predecessor_codebook": codes,
        "candidate_selector.successor_codebook": codes,
        "candidate_selector.hidden_projection.weight": (rank, hidden),
    }


def _markov(pair: Pair) -> dict[str, Shape]:
    rank, vocab = as_int(pair.nested("markov_rank")), pair.drafter.whole("vocab_size")
    shape = (vocab, rank) if vocab and rank else None
    found: dict[str, Shape] = {"markov_head.markov_w1.weight": shape, "markov_head.markov_w2.weight": shape}
    extra = {"gated": "gate_proj", "rnn": "joint_proj"}.get(str(pair.nested("markov_head_type")).lower())
    return found | ({f"markov_head.{extra}.{part}": None for part in ("weight", "bias")} if extra else {})


def _features(pair: Pair) -> int:
    ids = pair.nested("target_layer_ids")
    return len(ids) if isinstance(ids, list) else 0


def canonical(name: str) -> str:
    """The parameter that a tensor of this name is loaded into."""
    return ALIASES.get(name, name.removeprefix("model."))
