"""Drafters that begin as layers of their target instead of at random.

A drafter with the target's hidden size, heads and MLP can take the target's weights: its last layers, its last norm,
and for `fc` the deepest feature that it reads. What a drafter has beyond the target stays as it was.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.dense import DenseModel
from specpilot_cli.testbed.nn.eagle3 import EagleHead

OTHERS = 0.1
"""What is left of `fc`'s random weights beside the deepest feature."""


def same_shapes(drafter: BlockDrafter | EagleHead, target: DenseModel) -> bool:
    """Whether a layer of the target fits into the drafter."""
    c, t = drafter.config, target.config
    ours = c.hidden_size, c.num_attention_heads, c.num_key_value_heads, c.head_dim, c.intermediate_size
    theirs = t.hidden_size, t.num_attention_heads, t.num_key_value_heads, t.head_dim, t.intermediate_size
    return ours == theirs


@torch.no_grad()
def begin_with(drafter: BlockDrafter | EagleHead, target: DenseModel) -> None:
    """Copy the target's last layers into the drafter.

    The norm before a layer's attention goes into its query, key and value weights: a block drafter's keys and values of
    the context come through one norm for all layers.

    Raises:
        ValueError: the shapes differ.
    """
    if not same_shapes(drafter, target):
        raise ValueError("the drafter's layers do not have the target's shapes")
    size, count = target.config.hidden_size, len(drafter.layers)
    drafter.norm.weight.copy_(target.model.norm.weight)
    drafter.fc.weight.mul_(OTHERS)
    drafter.fc.weight[:, -size:] += torch.eye(size, device=drafter.fc.weight.device)
    for layer, source in zip(drafter.layers, target.model.layers[-count:], strict=True):
        scale = source.input_layernorm.weight.float()
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = getattr(source.self_attn, name).weight.float() * scale
            _behind(getattr(layer.self_attn, name), weight)
        layer.self_attn.o_proj.weight.copy_(source.self_attn.o_proj.weight)
        layer.post_attention_layernorm.weight.copy_(source.post_attention_layernorm.weight)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(layer.mlp, name).weight.copy_(getattr(source.mlp, name).weight)


def _behind(projection: nn.Linear, weight: Tensor) -> None:
    """Into the last columns; those before (EAGLE-3's embedding half) keep a part of their random weights."""
    extra = projection.weight.shape[1] - weight.shape[1]
    projection.weight[:, extra:] = weight
    projection.weight[:, :extra] *= OTHERS
