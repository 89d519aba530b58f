"""y = x W^T from W12 records in float64: what the kernels are compared with."""

import torch
from specpilot_kernels.w12_pack import op as w12


def matmul(x: torch.Tensor, packed: w12.W12Tensor) -> torch.Tensor:
    """`[M, K]` BF16 times the packed `[N, K]`, transposed: `[M, N]` float64, exact to 2^-53 a term."""
    product: torch.Tensor = x.double() @ w12.unpack(packed).double().T
    return product


def absolute_sum(x: torch.Tensor, packed: w12.W12Tensor) -> torch.Tensor:
    """`[M, N]` float64: the sum of |w x|, the scale of every summation error bound."""
    product: torch.Tensor = x.double().abs() @ w12.unpack(packed).double().abs().T
    return product
