"""Model and drafter shapes, read from the checkpoint's config.json."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

LINEAR, FULL = "linear_attention", "full_attention"


class ConfigError(ValueError):
    """A checkpoint or an argument the engine cannot serve; the message is one line."""


@dataclass(frozen=True)
class ModelConfig:
    """Shapes of a target; `layer_types` makes it dense (all full attention) or hybrid (Gated DeltaNet between)."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    linear_num_heads: int = 4
    linear_key_head_dim: int = 32
    linear_value_head_dim: int = 32
    linear_conv_kernel_dim: int = 4
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    max_position_embeddings: int = 4096
    eos_token_id: int = 0
    tie_word_embeddings: bool = True

    @property
    def linear_conv_dim(self) -> int:
        """Channels of the short convolution: q, k and v of every head."""
        return self.linear_num_heads * (2 * self.linear_key_head_dim + self.linear_value_head_dim)


@dataclass(frozen=True)
class DrafterConfig:
    """Shapes of a parallel drafter; `target_layer_ids` are the target layers whose outputs it reads."""

    algorithm: str
    target_layer_ids: tuple[int, ...]
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rank: int
    top_k: int = 16


def hybrid_layers(count: int) -> tuple[str, ...]:
    """`count` layers of which every fourth is full attention."""
    return tuple(FULL if i % 4 == 3 else LINEAR for i in range(count))


def _build(kind: type[Any], values: dict[str, Any], where: str) -> Any:
    known = {f.name for f in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise ConfigError(f"{where}: unknown keys {', '.join(unknown)}")
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error


def load_config(directory: Path) -> tuple[ModelConfig, dict[str, DrafterConfig]]:
    """Read `config.json`: {"model": {...}, "drafters": {"DFLASH2": {...}, ...}}; ConfigError when it is unusable."""
    path = directory / "config.json"
    try:
        raw = json.loads(path.read_text())
        model, drafters = raw["model"], raw.get("drafters", {})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a usable config.json ({type(error).__name__})") from error
    config: ModelConfig = _build(ModelConfig, model, f"{path} model")
    bad = set(config.layer_types) - {LINEAR, FULL}
    if bad:
        raise ConfigError(f"{path}: unknown layer types {sorted(bad)}")
    return config, {name: _build(DrafterConfig, body, f"{path} drafter {name}") for name, body in drafters.items()}
