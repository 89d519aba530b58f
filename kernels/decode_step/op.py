"""The public calls: Triton on a CUDA device and in its interpreter, the reference elsewhere."""

import os
from functools import cache

import torch
from specpilot_kernels.decode_step import reference

MAX_WIDTH = 16384


def _triton(x: torch.Tensor) -> bool:
    return x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1"


@cache
def _early(device: int) -> bool:
    return torch.cuda.get_device_capability(device)[0] >= 9


def _pdl(x: torch.Tensor, early: bool) -> bool:
    return early and x.is_cuda and _early(x.device.index)


def _dense(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        if not tensor.is_contiguous() or tensor.dtype != tensors[0].dtype or tensor.device != tensors[0].device:
            raise ValueError(f"dense tensors of one type are taken, got {tensor.dtype} {tuple(tensor.shape)}")


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, *, early: bool = True) -> torch.Tensor:
    """`[M, N]` normed by row, times `weight [N]`. `early`: launched before the kernel in front has ended.

    Raises:
        ValueError: shapes that do not fit, or more than 16,384 columns.
    """
    _dense(x, weight)
    if x.dim() != 2 or weight.shape != x.shape[1:] or x.shape[1] > MAX_WIDTH:
        raise ValueError(f"x {tuple(x.shape)} and weight {tuple(weight.shape)} are no rows of at most {MAX_WIDTH}")
    if not _triton(x):
        return reference.rms_norm(x, weight, eps)
    from specpilot_kernels.decode_step import triton_kernel

    return triton_kernel.rms_norm(x, weight, eps, _pdl(x, early))


def silu_mul(gate_up: torch.Tensor, *, early: bool = True) -> torch.Tensor:
    """`[M, 2F]`, gate then up, to silu(gate) * up `[M, F]`. Raises `ValueError` for other shapes."""
    _dense(gate_up)
    if gate_up.dim() != 2 or gate_up.shape[1] % 2:
        raise ValueError(f"gate and up in one matrix are taken, got {tuple(gate_up.shape)}")
    if not _triton(gate_up):
        return reference.silu_mul(gate_up)
    from specpilot_kernels.decode_step import triton_kernel

    return triton_kernel.silu_mul(gate_up, _pdl(gate_up, early))


def attend(
    qkv: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    position: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    *,
    early: bool = True,
) -> torch.Tensor:
    """Rotates one new token a sequence, stores its key and value in the cache, attends to all up to it.

    Shapes in `reference.attend`; D a power of two of at least 16. `position` is read on the device and must be below
    the cache's length: nothing checks it there.

    Raises:
        ValueError: shapes, types or devices that do not fit.
    """
    _dense(qkv, cos, sin, keys, values)
    size = keys.shape[-1]
    fits = qkv.dim() == 2 and keys.dim() == 4 and keys.shape == values.shape and qkv.shape[0] == keys.shape[0]
    if not fits or qkv.shape[1] % size or cos.shape != sin.shape or cos.shape[1:] != (size,):
        raise ValueError(f"qkv {tuple(qkv.shape)}, cos {tuple(cos.shape)}, keys {tuple(keys.shape)} do not fit")
    heads = qkv.shape[1] // size - 2 * keys.shape[1]
    if size & (size - 1) or size < 16 or heads < 1 or heads % keys.shape[1] or cos.shape[0] < keys.shape[2]:
        raise ValueError(f"{heads} heads of {size} over {keys.shape[1]} groups, {len(cos)} positions: not taken")
    if position.dtype != torch.int64 or position.numel() != 1 or position.device != qkv.device:
        raise ValueError("position is one int64 on the device of qkv")
    if not _triton(qkv):
        return reference.attend(qkv, cos, sin, position, keys, values, scale)
    from specpilot_kernels.decode_step import triton_kernel

    return triton_kernel.attend(qkv, cos, sin, position, keys, values, scale, _pdl(qkv, early))
