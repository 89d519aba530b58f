"""Every number of the recipe in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from miniengine.config import DrafterConfig, ModelConfig, hybrid_layers


@dataclass(frozen=True)
class Recipe:
    """Defaults train the shipped checkpoint; `smoke()` runs every stage in about a minute."""

    seed: int = 20261129
    vocabulary: int = 1024
    # target
    target_steps: int = 2200
    target_batch: int = 16
    target_rows: int = 256
    target_rate: float = 4e-3
    # continuations by the target itself
    continuations: int = 6144
    prompt_tokens: int = 64
    new_tokens: int = 144
    # drafters
    drafter_steps: int = 5000
    drafter_batch: int = 16
    anchors: int = 16
    blocks: tuple[int, ...] = (8, 16)
    drafter_rate: float = 3e-3
    drafter_layers: int = 2
    unary_weight: float = 0.3
    position_decay: float = 5.0

    def model(self) -> ModelConfig:
        """Thin and deep: as on a GPU, a pass costs much more than one more row of it."""
        return ModelConfig(
            vocab_size=self.vocabulary, hidden_size=128, intermediate_size=384, layer_types=hybrid_layers(8),
            num_attention_heads=4, num_key_value_heads=2, head_dim=32, linear_num_heads=4, linear_key_head_dim=32,
            linear_value_head_dim=32, max_position_embeddings=4096,
        )  # fmt: skip

    def drafter(self, algorithm: str) -> DrafterConfig:
        """Both drafters share the backbone's shape."""
        return DrafterConfig(
            algorithm=algorithm, target_layer_ids=(2, 5, 7), num_hidden_layers=self.drafter_layers,
            intermediate_size=384, num_attention_heads=4, num_key_value_heads=2, head_dim=32, rank=32, top_k=16,
        )  # fmt: skip

    def smoke(self) -> Recipe:
        """The same stages with a few steps each."""
        return replace(
            self, target_steps=12, target_batch=4, target_rows=128, continuations=16, new_tokens=96, drafter_steps=6,
            drafter_batch=4, anchors=4,
        )  # fmt: skip
