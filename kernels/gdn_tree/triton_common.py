"""What both variants share: the gates of a row, and how strided inputs are handed to a kernel."""

import torch
import triton
import triton.language as tl
from specpilot_kernels.gdn_tree.reference import Inputs


@triton.jit
def gates(a, b, a_log, dt_bias):
    """Log decay and beta from their raw inputs, in the order of operations of the engine's kernel."""
    x = a + dt_bias
    soft = tl.where(x <= 20.0, tl.log(1.0 + tl.exp(x)), x)
    return -tl.exp(a_log) * soft, 1.0 / (1.0 + tl.exp(-b))


def arguments(x: Inputs) -> dict[str, object]:
    """Pointers and strides `[request, row]`; heads and columns must be dense.

    Raises:
        ValueError: they are not.
    """
    found: dict[str, object] = {"a_log": x.a_log.contiguous(), "dt_bias": x.dt_bias.contiguous()}
    for name in ("q", "k", "v", "a", "b"):
        tensor: torch.Tensor = getattr(x, name)
        dense = tensor.stride()[2:] == torch.empty(tensor.shape[2:], device="meta").stride()
        if not dense:
            raise ValueError(f"{name}: heads and columns of a row must lie densely, strides are {tensor.stride()}")
        found |= {name: tensor, f"{name}_request": tensor.stride(0), f"{name}_row": tensor.stride(1)}
    return found
