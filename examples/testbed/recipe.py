"""Every number of the drafters' recipe in one place."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

ALGORITHMS = ("dflash2", "dspark", "eagle3")


@dataclass(frozen=True)
class Recipe:
    """Defaults are for SmolLM2-135M on one H200; `smoke()` runs every stage on a CPU in about a minute."""

    seed: int = 20261129
    # text
    texts: int = 40960
    held_out: int = 64
    message_tokens: int = 112
    """At most so many tokens of a user message are written by the target."""
    top_k: int = 50
    temperature: float = 0.8
    new_tokens: int = 256
    batch: int = 2048
    shortest_answer: int = 24
    # drafters
    layers: int = 5
    intermediate: int = 1536
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    rank: int = 64
    features: int = 5
    eagle_features: int = 3
    # training
    steps: int = 2400
    sequences: int = 96
    anchors: int = 64
    eagle_sequences: int = 32
    eagle_depth: int = 5
    hard: float = 0.0
    """Anchors are drawn with a weight of 1 - hard * the target's probability of their token (`hard_anchors`)."""
    dflash2_rows: tuple[int, ...] = (8, 16)
    dspark_rows: tuple[int, ...] = (7, 15)
    wide_every: int = 4
    """Every so many steps a block drafter is trained on its second block length instead of its first; 0: never."""
    init: str = "target"
    """`target`: begin with the target's last layers where the shapes allow it; `random`."""
    optimizer: str = "adamw"
    """Or `muon`, for the backbone's matrices."""
    rate: float = 1e-3
    weight_decay: float = 0.01
    warm_up: float = 0.04
    position_decay: float = 3.0
    """The weight of the j-th proposal is exp(-j / position_decay)."""
    reach: float = 0.0
    """This share of a row's weight is multiplied by the chance that a chain gets there (`head_entropy`)."""
    eagle_decay: float = 0.8
    unary_share: float = 0.25
    softness: float = 0.0
    """This share of every label is the target's distribution over its `soft_labels` likeliest tokens."""
    soft_labels: int = 8
    fuse: int = 1
    """1 compiles the drafters' element-wise parts on a GPU (`nn/fused.py`); where that fails they run as written."""
    evaluate_every_s: float = 60.0
    save_every_s: float = 60.0

    def smoke(self) -> Recipe:
        """The same stages in miniature."""
        return replace(
            self, texts=24, held_out=4, message_tokens=8, new_tokens=40, batch=8, shortest_answer=4, layers=1,
            intermediate=64, heads=2, kv_heads=1, head_dim=16, rank=8, features=2, eagle_features=2, steps=6,
            sequences=2, anchors=4, wide_every=2, softness=0.5, soft_labels=3, hard=0.5, eagle_sequences=2,
            eagle_depth=3, evaluate_every_s=5.0, save_every_s=5.0,
        )  # fmt: skip

    def changed(self, changes: list[str]) -> Recipe:
        """NAME=VALUE changes; raises ValueError for an unknown name."""
        found = self
        for change in changes:
            name, _, value = change.partition("=")
            if name not in self.__dataclass_fields__:
                raise ValueError(f"the recipe has no {name}")
            old = getattr(found, name)
            new = tuple(int(v) for v in value.split(",")) if isinstance(old, tuple) else type(old)(value)
            found = replace(found, **{name: new})
        return found

    def to_json(self) -> dict[str, Any]:
        """For the manifest."""
        return asdict(self)


def feature_layers(layers: int, count: int) -> tuple[int, ...]:
    """`count` layers evenly from 1 to layers - 3, as SGLang chooses them (`dflash_utils.build_target_layer_ids`)."""
    if count == 1:
        return (layers // 2,)
    if layers < 4 or count > layers - 3:
        raise ValueError(f"{count} feature layers do not fit into {layers}")
    span = layers - 4
    return tuple(round(1 + i * span / (count - 1)) for i in range(count))
