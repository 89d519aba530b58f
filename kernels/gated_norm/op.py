"""The gated RMS norm of few rows, with the tiles that SGLang 0.5.20 would take for them."""

import torch
from specpilot_kernels.gated_norm.kernel import GATES, gated_rms_norm, takes

MAX_TILE = 4


def rows_per_program(rows: int, multiprocessors: int) -> int:
    """Rows a program as `calc_rows_per_block` has them: a power of two, two programs a multiprocessor, at most 4."""
    wanted = -(-rows // (2 * multiprocessors))
    return min(1 << max(0, wanted - 1).bit_length(), MAX_TILE)


def norm(
    x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6, activation: str = "swish"
) -> torch.Tensor:
    """`[M, N]` of x's type.

    Args:
        x, z: `[M, N]` with dense rows, N a power of two from 32 to 128.
        weight: `[N]`.

    Raises:
        ValueError: shapes or gate are not what the kernel takes.
    """
    if activation not in GATES or not takes(x, z, weight):
        raise ValueError(f"x {tuple(x.shape)}, z {tuple(z.shape)}, gate {activation}: not for this kernel.")
    if not x.is_cuda:  # Triton's interpreter
        return gated_rms_norm(x, z, weight, eps, activation, rows_per_program(len(x), 132), pdl=False)
    device = torch.cuda.get_device_properties(x.device)
    rows = rows_per_program(len(x), device.multi_processor_count)
    return gated_rms_norm(x, z, weight, eps, activation, rows, pdl=device.major >= 9)
