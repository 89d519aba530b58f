"""The engine's source lives outside the package on purpose (it is exported as a repository): put it on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "specpilot_cli" / "engine" / "miniengine" / "src"
sys.path.insert(0, str(SOURCE))

import torch  # noqa: E402
from miniengine.config import DrafterConfig, ModelConfig, hybrid_layers  # noqa: E402
from miniengine.drafter import Drafter  # noqa: E402
from miniengine.model import Model  # noqa: E402

torch.set_num_threads(1)

ALGORITHMS = ("DFLASH2", "DSPARK")


def small_config(family: str) -> ModelConfig:
    """A small dense or hybrid target; odd sizes so that swapped dimensions do not fit."""
    layers = ("full_attention",) * 3 if family == "dense" else hybrid_layers(4)
    return ModelConfig(
        vocab_size=61, hidden_size=24, intermediate_size=40, layer_types=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, linear_num_heads=3, linear_key_head_dim=6, linear_value_head_dim=10,
        max_position_embeddings=512, tie_word_embeddings=False,
    )  # fmt: skip


def small_engine(family: str, algorithm: str, seed: int = 0) -> tuple[Model, Drafter]:
    """Random weights with a head of its own: a tied random head would only repeat its input."""
    torch.manual_seed(seed)
    config = small_config(family)
    model = Model(config, (1, 2)).eval().requires_grad_(False)
    model.embed.mul_(50)
    assert model.head is not None
    model.head.mul_(4)
    shape = DrafterConfig(algorithm, (1, 2), 1, 32, 4, 2, 8, rank=5, top_k=7)
    return model, Drafter(shape, config).eval().requires_grad_(False)


@pytest.fixture(params=("dense", "hybrid"))
def family(request: pytest.FixtureRequest) -> str:
    """Both target families."""
    return str(request.param)


@pytest.fixture(params=ALGORITHMS)
def algorithm(request: pytest.FixtureRequest) -> str:
    """Both drafters."""
    return str(request.param)


@pytest.fixture
def engine(family: str, algorithm: str) -> tuple[Model, Drafter]:
    """A random-weight engine of each family with each drafter."""
    return small_engine(family, algorithm)


@pytest.fixture
def prompts() -> list[list[int]]:
    """Three prompts of different lengths."""
    make = torch.Generator().manual_seed(7)
    return [torch.randint(1, 61, (n,), generator=make).tolist() for n in (5, 17, 11)]
