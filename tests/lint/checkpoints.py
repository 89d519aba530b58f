"""Tiny synthetic models: a target, and drafters that fit it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from specpilot_cli.lint import Checkpoint, Pair, Tensor
from specpilot_cli.lint.expected import expected

TARGET: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 8, "num_hidden_layers": 6,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12, "vocab_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip
DFLASH: dict[str, Any] = {
    **TARGET, "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "num_target_layers": 6, "block_size": 8,
    "dflash_config": {"target_layer_ids": [1, 3], "mask_token_id": 31},
}  # fmt: skip
DFLASH2: dict[str, Any] = {
    **DFLASH, "architectures": ["DFlash2DraftModel"],
    "dflash_config": {
        **DFLASH["dflash_config"], "selector_rank": 3, "selector_top_k": 4, "conv_kernel_size": 2, "conv_group_size": 4,
    },
}  # fmt: skip
DSPARK: dict[str, Any] = {
    **DFLASH, "architectures": ["Qwen3DSparkModel"], "block_size": 7, "markov_rank": 3, "markov_head_type": "vanilla",
}  # fmt: skip
KINDS = {"DFLASH": DFLASH, "DFLASH2": DFLASH2, "DSPARK": DSPARK}
FLAGS = (
    "--speculative-num-draft-tokens", "8", "--context-length", "64", "--max-running-requests", "8",
    "--cuda-graph-max-bs-decode", "8", "--page-size", "1",
)  # fmt: skip


def headers(config: dict[str, Any]) -> dict[str, Tensor]:
    """Every tensor that a drafter of this config needs, of the right shape."""
    wanted = expected(Pair(Checkpoint("t", TARGET), Checkpoint("d", config)))
    return {name: Tensor(shape or (1,), "BF16") for name, shape in wanted.items()}


def pair(
    kind: str = "DFLASH",
    *,
    target: dict[str, Any] | None = None,
    drafter: dict[str, Any] | None = None,
    nested: dict[str, Any] | None = None,
    tensors: dict[str, Tensor] | None = None,
    flags: tuple[str, ...] | None = None,
    tokens: frozenset[str] | None = None,
) -> Pair:
    """A clean pair with changes; a value of None in `target`, `drafter` or `nested` drops the key."""
    base = KINDS[kind]
    config = _changed(base, drafter or {})
    if nested is not None:
        config["dflash_config"] = _changed(base["dflash_config"], nested)
    given = FLAGS if flags is None else flags
    return Pair(
        Checkpoint("target", _changed(TARGET, target or {}), {}, tokens=tokens),
        Checkpoint("drafter", config, headers(base) if tensors is None else tensors),
        given,
    )


def _changed(config: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in {**config, **changes}.items() if value is not None}


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> Path:
    """A model folder with zeros for weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file({n: np.zeros(t.shape, dtype=np.float16) for n, t in tensors.items()}, folder / "model.safetensors")
    return folder
