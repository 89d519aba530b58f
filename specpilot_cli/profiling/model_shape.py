"""Shapes of a target or drafter, from its Hugging Face `config.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specpilot_cli.core.errors import InputUnusable


@dataclass(frozen=True)
class ModelShape:
    """A decoder of full-attention layers and Gated DeltaNet layers with dense MLPs."""

    hidden: int
    mlp: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int
    layers: tuple[str, ...]
    """`full` or `gdn`, in order."""
    output_gate: bool = False
    """Whether the query projection also gives a gate as wide as the queries (`attn_output_gate`)."""
    gdn_key_heads: int = 0
    gdn_value_heads: int = 0
    gdn_key_dim: int = 0
    gdn_value_dim: int = 0
    gdn_taps: int = 0
    gdn_state_bytes: int = 4
    """Bytes of one number of the recurrent state (`mamba_ssm_dtype`)."""

    @property
    def full(self) -> int:
        """Number of full-attention layers."""
        return self.layers.count("full")

    @property
    def gdn(self) -> int:
        """Number of Gated DeltaNet layers."""
        return self.layers.count("gdn")

    @property
    def gdn_channels(self) -> int:
        """Channels that the GDN convolution runs over: queries, keys and values."""
        return 2 * self.gdn_key_heads * self.gdn_key_dim + self.gdn_value_heads * self.gdn_value_dim

    @property
    def gdn_state(self) -> int:
        """Numbers in one layer's recurrent state of one request."""
        return self.gdn_value_heads * self.gdn_key_dim * self.gdn_value_dim


def model_shape(config: Mapping[str, Any]) -> ModelShape:
    """Shape of a model.

    Raises:
        InputUnusable: a key is missing, or the model has experts, whose work a step's tokens decide.
    """
    text: Mapping[str, Any] = config.get("text_config", config)
    if int(text.get("num_experts") or text.get("num_local_experts") or 0) > 0:
        raise InputUnusable("The model has experts.", "Their bytes depend on the routing, which no trace records.")
    try:
        count = int(text["num_hidden_layers"])
        kinds = text.get("layer_types") or ["full_attention"] * count
        layers = tuple("gdn" if kind == "linear_attention" else "full" for kind in kinds)
        heads = int(text["num_attention_heads"])
        return ModelShape(
            hidden=int(text["hidden_size"]),
            mlp=int(text["intermediate_size"]),
            vocab=int(text["vocab_size"]),
            heads=heads,
            kv_heads=int(text.get("num_key_value_heads", heads)),
            head_dim=int(text.get("head_dim") or int(text["hidden_size"]) // heads),
            layers=layers,
            output_gate=bool(text.get("attn_output_gate", False)),
            **(_gdn(text) if "gdn" in layers else {}),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputUnusable("The model's config.json lacks what its work depends on.", repr(error)) from None


def _gdn(text: Mapping[str, Any]) -> dict[str, int]:
    return {
        "gdn_key_heads": int(text["linear_num_key_heads"]),
        "gdn_value_heads": int(text["linear_num_value_heads"]),
        "gdn_key_dim": int(text["linear_key_head_dim"]),
        "gdn_value_dim": int(text["linear_value_head_dim"]),
        "gdn_taps": int(text["linear_conv_kernel_dim"]),
        "gdn_state_bytes": 4 if str(text.get("mamba_ssm_dtype", "float32")) == "float32" else 2,
    }


@dataclass(frozen=True)
class DraftShape:
    """A parallel block drafter (DFLASH, DFLASH2, DSPARK) that borrows the target's embedding and LM head."""

    body: ModelShape
    block: int
    """Rows of its draft block."""
    features: int
    """Target layers whose hidden states it reads."""
    markov_rank: int = 0
    selector_rank: int = 0
    selector_top_k: int = 0
    conv_taps: int = 0
    conv_group: int = 0


def draft_shape(config: Mapping[str, Any]) -> DraftShape:
    """Shape of a drafter (keys as in `srt/speculative/dflash_utils.py: parse_dflash_draft_config`).

    Raises:
        InputUnusable: see `model_shape`.
    """
    nested: Mapping[str, Any] = {**config, **config.get("dflash_config", {})}
    plain = {**config, "layer_types": None}  # sliding layers are attention layers too
    ids = nested.get("target_layer_ids") or []
    try:
        return DraftShape(
            model_shape(plain),
            block=int(nested.get("block_size", 16)),
            features=len(ids) or int(config["num_hidden_layers"]),
            markov_rank=int(config.get("markov_rank", 0)),
            selector_rank=int(nested.get("selector_rank", 0)),
            selector_top_k=int(nested.get("selector_top_k", 0)),
            conv_taps=int(nested.get("conv_kernel_size", 0)),
            conv_group=int(nested.get("conv_group_size", 0)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputUnusable("The drafter's config.json lacks what its work depends on.", repr(error)) from None
