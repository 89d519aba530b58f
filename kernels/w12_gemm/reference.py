"""y = x W^T from W12 records in float64: what the kernels are compared with."""

import torch
from specpilot_kernels.w12_pack import op as w12


def weight(packed: w12.W12Tensor, view: bool = False) -> torch.Tensor:
    """`[N, K]` BF16: the exact weights, or the 8-bit view with its midpoints."""
    return w12.view8(packed) if view else w12.unpack(packed)


def matmul(x: torch.Tensor, packed: w12.W12Tensor, view: bool = False) -> torch.Tensor:
    """`[M, K]` BF16 times the packed `[N, K]`, transposed: `[M, N]` float64, exact to 2^-53 a term."""
    product: torch.Tensor = x.double() @ weight(packed, view).double().T
    return product


def absolute_sum(x: torch.Tensor, packed: w12.W12Tensor, view: bool = False) -> torch.Tensor:
    """`[M, N]` float64: the sum of |w x|, the scale of every summation error bound."""
    product: torch.Tensor = x.double().abs() @ weight(packed, view).double().abs().T
    return product
