"""Every number of the hybrid core's recipe in one place."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recipe import Recipe

from specpilot_cli.testbed.nn.hybrid import HybridConfig

DRAFTERS = Recipe(
    layers=3, intermediate=1536, heads=4, kv_heads=1, head_dim=128, rank=64, features=3, new_tokens=192, held_out=96,
    sequences=64, batch=512, dflash2_rows=(8, 16), dspark_rows=(7, 15), steps=2000,
    position_decay=5.0,
)  # fmt: skip


@dataclass(frozen=True)
class CoreRecipe:
    """A Qwen3.5 of 8 layers whose head groups are those of the 27B shape (24/4 and 16/48 heads)."""

    seed: int = 20261129
    vocabulary: int = 4096
    """The last id is the drafters' mask token; no text has it."""
    full_vocabulary: int = 248320
    """Of the stand-in: the core is trained against its unused rows, as so many logits of zero."""
    hidden: int = 640
    intermediate: int = 1024
    layers: int = 8
    heads: int = 6
    kv_heads: int = 1
    head_dim: int = 256
    linear_key_heads: int = 2
    linear_value_heads: int = 6
    linear_head_dim: int = 128
    steps: int = 2000
    batch: int = 48
    rows: int = 512
    rate: float = 2e-3
    weight_decay: float = 0.1
    # continuations by the core itself
    texts: int = 12288
    prompt_tokens: int = 64
    served: int = 384
    """Beginnings of held-out text for whoever serves the core, in `held-ids.json`: 96 know a tau within 0.11 alone."""
    drafters: Recipe = DRAFTERS

    def config(self) -> HybridConfig:
        """Shapes of the core."""
        return HybridConfig(
            self.vocabulary, self.hidden, self.intermediate, self.layers, self.heads, self.kv_heads,
            self.linear_key_heads, self.linear_value_heads, self.head_dim, self.linear_head_dim, self.linear_head_dim,
        )  # fmt: skip

    def smoke(self) -> CoreRecipe:
        """The same stages in miniature."""
        return replace(
            self, vocabulary=512, hidden=32, intermediate=48, layers=8, heads=2, kv_heads=1, head_dim=16,
            linear_key_heads=1, linear_value_heads=3, linear_head_dim=8, steps=4, batch=2, rows=64, texts=16,
            prompt_tokens=16, served=32,
            drafters=replace(Recipe().smoke(), dflash2_rows=(8,), dspark_rows=(7,), new_tokens=32),
        )  # fmt: skip
