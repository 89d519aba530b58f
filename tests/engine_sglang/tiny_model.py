"""A Qwen3-shape model of 100 k random parameters."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 2048,
    "vocab_size": 512,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
}


def write_model(folder: Path, seed: int = 0) -> Path:
    """The model with weights wide enough that near-ties are rare (logits have a standard deviation of about 8)."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    source = np.random.default_rng(seed)
    hidden, heads, kv, head, mlp = 64, 4, 2, 16, 128
    shapes = {
        "self_attn.q_proj": (heads * head, hidden),
        "self_attn.k_proj": (kv * head, hidden),
        "self_attn.v_proj": (kv * head, hidden),
        "self_attn.o_proj": (hidden, heads * head),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
    }
    norms = {"input_layernorm": hidden, "post_attention_layernorm": hidden}
    norms |= {"self_attn.q_norm": head, "self_attn.k_norm": head}
    tensors = {"model.embed_tokens.weight": source.normal(size=(512, hidden)), "model.norm.weight": np.ones(hidden)}
    tensors["lm_head.weight"] = source.normal(size=(512, hidden))  # a tied head would repeat the last token for ever
    for layer in range(2):
        for name, (rows, columns) in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = source.normal(size=(rows, columns)) / columns**0.5
        for name, width in norms.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = np.ones(width)
    save_file({name: value.astype(np.float32) for name, value in tensors.items()}, folder / "model.safetensors")
    return folder
