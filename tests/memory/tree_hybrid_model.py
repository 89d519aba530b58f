"""A random hybrid target of 24 words (Gated DeltaNet and attention in turn) beside the random drafters of `tree_model`.

Float32, wide weights and slow decay: near-ties are rare, and every token depends on the whole text through the states.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from engine_sglang import tree_model as dense

LAYERS, EVERY, KEY_HEADS, VALUE_HEADS, WIDTH, TAPS = 4, 2, 2, 4, 16, 4
CHANNELS = (2 * KEY_HEADS + VALUE_HEADS) * WIDTH
KINDS = ["full_attention" if (layer + 1) % EVERY == 0 else "linear_attention" for layer in range(LAYERS)]
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "num_hidden_layers": LAYERS,
    "full_attention_interval": EVERY, "layer_types": KINDS, "linear_conv_kernel_dim": TAPS,
    "linear_key_head_dim": WIDTH, "linear_value_head_dim": WIDTH, "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": VALUE_HEADS, "attn_output_gate": True, "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25},
    "mamba_ssm_dtype": "float32", "num_experts": 0, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip


def write_models(folder: Path, seed: int = 3) -> Path:
    """`target`, `dflash2` and `dspark` below `folder`."""
    dense.write_models(folder, seed)
    source = np.random.default_rng(seed + 1)

    def drawn(rows: int, columns: int) -> np.ndarray:
        return source.normal(size=(rows, columns)) / columns**0.5

    hidden, heads, kv, head = dense.HIDDEN, dense.HEADS, dense.KV, dense.HEAD
    # the weights of these norms are stored less one
    target = {"model.norm.weight": np.zeros(hidden)}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        target[name] = source.normal(size=(dense.VOCAB, hidden))
    for layer, kind in enumerate(KINDS):
        at = f"model.layers.{layer}."
        target |= {f"{at}{name}.weight": np.zeros(hidden) for name in ("input_layernorm", "post_attention_layernorm")}
        for name, rows, columns in (
            ("gate", dense.MLP, hidden),
            ("up", dense.MLP, hidden),
            ("down", hidden, dense.MLP),
        ):
            target[f"{at}mlp.{name}_proj.weight"] = drawn(rows, columns)
        if kind == "full_attention":
            at += "self_attn."
            for name, rows, columns in (
                ("q", 2 * heads * head, hidden), ("k", kv * head, hidden), ("v", kv * head, hidden),
                ("o", hidden, heads * head),
            ):  # fmt: skip
                target[f"{at}{name}_proj.weight"] = drawn(rows, columns)
            target |= {f"{at}{name}_norm.weight": np.zeros(head) for name in "qk"}
            continue
        at += "linear_attn."
        values = VALUE_HEADS * WIDTH
        for name, rows in (("qkv", CHANNELS), ("z", values), ("b", VALUE_HEADS), ("a", VALUE_HEADS)):
            target[f"{at}in_proj_{name}.weight"] = drawn(rows, hidden)
        target[f"{at}conv1d.weight"] = source.normal(size=(CHANNELS, 1, TAPS)) / 2
        target[f"{at}dt_bias"] = np.full(VALUE_HEADS, -3.0)
        target[f"{at}A_log"] = np.linspace(0.0, 2.0, VALUE_HEADS)
        target[f"{at}norm.weight"] = np.ones(WIDTH)
        target[f"{at}out_proj.weight"] = drawn(hidden, values)
    dense._save(folder / "target", CONFIG, target)
    return folder
