"""Tiny BF16 models whose every linear layer is large enough for a record, with escapes of every kind in the weights."""

from __future__ import annotations

import json
from pathlib import Path

HIDDEN, HEADS, KV_HEADS, HEAD, MLP, LAYERS, VOCABULARY = 128, 4, 2, 32, 192, 2, 512
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": MLP,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 2048,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "eos_token_id": 1,
    "bos_token_id": 0,
}
SHAPES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (MLP, HIDDEN),
    "mlp.up_proj": (MLP, HIDDEN),
    "mlp.down_proj": (HIDDEN, MLP),
}
BIASED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


def write_model(folder: Path, *, biases: bool = False, seed: int = 0) -> Path:
    """A Qwen3 model, or with `biases` a Qwen2 one, whose qkv has them and which has no norms of queries and keys."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True)
    other = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} if biases else {}
    (folder / "config.json").write_text(json.dumps(CONFIG | other))
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tensors = {"model.embed_tokens.weight": normal(VOCABULARY, HIDDEN), "lm_head.weight": normal(VOCABULARY, HIDDEN)}
    tensors["model.norm.weight"] = torch.ones(HIDDEN)
    for layer in range(LAYERS):
        for name, (rows, columns) in SHAPES.items():
            weight = normal(rows, columns) / columns**0.5
            weight[3, 5:9] = torch.tensor([0.0, -0.0, 1e-39, 2e-9])  # zeros, a denormal and a weight far below: escapes
            tensors[f"model.layers.{layer}.{name}.weight"] = weight
            if biases and name in BIASED:
                tensors[f"model.layers.{layer}.{name}.bias"] = normal(rows)
        norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN}
        norms |= {} if biases else {"self_attn.q_norm": HEAD, "self_attn.k_norm": HEAD}
        for name, width in norms.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(width)
    save_file({name: value.bfloat16() for name, value in tensors.items()}, folder / "model.safetensors")
    return folder
