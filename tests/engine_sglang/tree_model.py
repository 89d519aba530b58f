"""A random dense target of 24 words and random DFLASH2 and DSPARK drafters: few words, so that trees are accepted.

Float32 and wide weights: near-ties are rare, and every token depends on the whole text through four layers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

VOCAB, MASK, HIDDEN, HEADS, KV, HEAD, MLP, LAYERS, RANK, TOP_K = 24, 23, 64, 4, 2, 16, 128, 4, 8, 16
COMMON: dict[str, Any] = {
    "model_type": "qwen3", "torch_dtype": "float32", "hidden_act": "silu", "hidden_size": HIDDEN,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD, "intermediate_size": MLP,
    "rms_norm_eps": 1e-6, "rope_theta": 10000, "max_position_embeddings": 2048, "vocab_size": VOCAB,
    "tie_word_embeddings": False, "attention_bias": False, "eos_token_id": MASK, "bos_token_id": MASK,
}  # fmt: skip
PLACES = {"target_layer_ids": [0, 2], "mask_token_id": MASK}


def write_models(folder: Path, seed: int = 3) -> Path:
    """`target`, `dflash2` and `dspark` below `folder`."""
    source = np.random.default_rng(seed)
    target = {"model.embed_tokens.weight": source.normal(size=(VOCAB, HIDDEN)), "model.norm.weight": np.ones(HIDDEN)}
    target["lm_head.weight"] = source.normal(size=(VOCAB, HIDDEN))
    target |= _layers(source, "model.", LAYERS)
    _save(folder / "target", {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": LAYERS}, target)
    drafter = {"fc.weight": source.normal(size=(HIDDEN, 2 * HIDDEN)) / 11, "hidden_norm.weight": np.ones(HIDDEN)}
    drafter |= {"norm.weight": np.ones(HIDDEN), **_layers(source, "", 1)}
    codes = {name: source.normal(size=(VOCAB, RANK)) for name in ("one", "two")}
    selector = {"predecessor_codebook": codes["one"], "successor_codebook": codes["two"]}
    selector["hidden_projection.weight"] = source.normal(size=(RANK, HIDDEN)) / 4
    markov = {"markov_w1.weight": codes["one"], "markov_w2.weight": codes["two"]}
    common = {"num_hidden_layers": 1, "num_target_layers": LAYERS}
    picks = {"selector_rank": RANK, "selector_top_k": TOP_K}
    dflash2 = {"architectures": ["DFlash2DraftModel"], "block_size": 8, "dflash_config": {**PLACES, **picks}}
    dspark = {"architectures": ["Qwen3DSparkModel"], "block_size": 7, "dflash_config": PLACES, **PLACES}
    dspark |= {"markov_rank": RANK, "markov_head_type": "vanilla"}
    heads = {f"candidate_selector.{name}": value for name, value in selector.items()}
    _save(folder / "dflash2", {**common, **dflash2}, {**drafter, **heads})
    heads = {f"markov_head.{name}": value for name, value in markov.items()}
    _save(folder / "dspark", {**common, **dspark}, {**drafter, **heads})
    return folder


def _layers(source: np.random.Generator, prefix: str, count: int) -> dict[str, Any]:
    shapes = {
        "self_attn.q_proj": (HEADS * HEAD, HIDDEN), "self_attn.k_proj": (KV * HEAD, HIDDEN),
        "self_attn.v_proj": (KV * HEAD, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
        "mlp.gate_proj": (MLP, HIDDEN), "mlp.up_proj": (MLP, HIDDEN), "mlp.down_proj": (HIDDEN, MLP),
    }  # fmt: skip
    norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
    norms |= {"self_attn.q_norm": HEAD, "self_attn.k_norm": HEAD}
    found: dict[str, Any] = {}
    for layer in range(count):
        for name, (rows, columns) in shapes.items():
            found[f"{prefix}layers.{layer}.{name}.weight"] = source.normal(size=(rows, columns)) / columns**0.5
        for name, width in norms.items():
            found[f"{prefix}layers.{layer}.{name}.weight"] = np.ones(width)
    return found


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**COMMON, **config}))
    save_file({name: value.astype(np.float32) for name, value in tensors.items()}, folder / "model.safetensors")
