"""The small operations of one decode step, operation for operation as Transformers' eager Llama has them.

Rounding to the input's type happens where those modules round; sums of the attention are float32.
"""

import torch


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """`[M, N]` normed by row in float32, rounded, times `weight [N]`."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """`[M, 2F]`, gate then up, to silu(gate) * up `[M, F]`."""
    gate, up = gate_up.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of `[..., D]` by `cos`, `sin` `[D]`, halves paired."""
    one, two = x.chunk(2, -1)
    return (x * cos) + (torch.cat((-two, one), -1) * sin)


def attend(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """One new token a sequence: rotate, put key and value into the cache in place, attend to all up to it.

    Args:
        qkv: `[M, (H + 2G) * D]`, queries, keys, values of the new tokens.
        cos, sin: `[L, D]`, one row a position.
        position: int64 `[1]`, slot and position of the new tokens.
        keys, values: `[M, G, L, D]`, slots below `position` filled.

    Returns:
        `[M, H * D]`.
    """
    rows, groups, _, size = keys.shape
    heads = qkv.shape[1] // size - 2 * groups
    at = int(position)
    q, k, v = qkv.view(rows, -1, size).split((heads, groups, groups), 1)
    q, k = rotate(q, cos[at], sin[at]), rotate(k, cos[at], sin[at])
    keys[:, :, at], values[:, :, at] = k, v
    wide = q.float().view(rows, groups, heads // groups, size)
    scores = torch.einsum("mghd,mgld->mghl", wide, keys[:, :, : at + 1].float()) * scale
    out = torch.einsum("mghl,mgld->mghd", scores.softmax(-1), values[:, :, : at + 1].float())
    return out.reshape(rows, heads * size).to(qkv.dtype)
