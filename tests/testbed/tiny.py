"""Tiny random targets, texts and drafters."""

from __future__ import annotations

import torch
from torch import Tensor

from specpilot_cli.testbed.nn.acceptance import Texts
from specpilot_cli.testbed.nn.block_drafter import Algorithm, BlockConfig, BlockDrafter
from specpilot_cli.testbed.nn.dense import DenseConfig, DenseModel
from specpilot_cli.testbed.nn.eagle3 import EagleConfig, EagleHead
from specpilot_cli.testbed.nn.generate import Generator, Target, greedy
from specpilot_cli.testbed.nn.hybrid import HybridConfig, HybridModel

VOCAB, HIDDEN, MASK = 61, 32, 60


def dense(seed: int = 0) -> DenseModel:
    """Six layers."""
    torch.manual_seed(seed)
    config = DenseConfig(VOCAB, HIDDEN, 48, 6, 4, 2, 8, max_position_embeddings=256)
    return DenseModel(config).eval().requires_grad_(False)


def hybrid(seed: int = 0, layers: int = 8) -> HybridModel:
    """Every fourth layer full; small heads."""
    torch.manual_seed(seed)
    config = HybridConfig(
        VOCAB, HIDDEN, 48, layers, 4, 2, 2, 6, head_dim=16, linear_key_head_dim=8, linear_value_head_dim=8,
        max_position_embeddings=256,
    )  # fmt: skip
    model = HybridModel(config)
    for name, parameter in model.named_parameters():  # norms at their start would hide a wrong one
        if "norm" in name:
            torch.nn.init.uniform_(parameter, -0.3, 0.3) if "linear_attn" not in name else None
    return model.eval().requires_grad_(False)


def block(algorithm: Algorithm, seed: int = 1, layers: int = 2) -> BlockDrafter:
    """A drafter with every weight at random, convolutions and norms too."""
    torch.manual_seed(seed)
    config = BlockConfig(
        algorithm, HIDDEN, VOCAB, 6, (1, 3), MASK, layers, 4, 2, 8, 48, rank=4, top_k=5, conv_group_size=8,
        rope_theta=100000.0, max_position_embeddings=256,
    )  # fmt: skip
    drafter = BlockDrafter(config).eval().requires_grad_(False)
    for parameter in drafter.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return drafter


def eagle(seed: int = 2) -> EagleHead:
    """A head with random norms."""
    torch.manual_seed(seed)
    config = EagleConfig(HIDDEN, VOCAB, (1, 2, 4), 4, 2, 8, 48, rope_theta=100000.0, max_position_embeddings=256)
    head = EagleHead(config).eval().requires_grad_(False)
    for parameter in head.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    return head


def texts(target: Target, count: int = 3, prompt: int = 5, new: int = 24, seed: int = 3) -> Texts:
    """Greedy answers to random prompts."""
    torch.manual_seed(seed)
    prompts: list[list[int]] = torch.randint(0, VOCAB - 1, (count, prompt)).tolist()
    answers = Generator(target, count, prompt + new).run(prompts, new, greedy, None)
    ids = torch.tensor([p + a for p, a in zip(prompts, answers, strict=True)])
    return Texts(ids, torch.full((count,), prompt), torch.full((count,), prompt + new))


def close(found: Tensor, wanted: Tensor, tolerance: float = 2e-4) -> bool:
    """Within rounding of float32 sums in another order: relative to the largest value."""
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max().clamp(min=1.0))
