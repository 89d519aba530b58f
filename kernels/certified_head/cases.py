"""Heads with near ties, and rows that meet them."""

import torch


def near_ties(weight: torch.Tensor, generator: torch.Generator, column: int = 0) -> None:
    """A fifth of the rows becomes a copy of another, a tenth differs from another by one last bit."""
    v = len(weight)
    other = torch.randint(0, v, (v,), generator=generator, device=weight.device)
    draw = torch.rand(v, generator=generator, device=weight.device)
    copy, close = draw < 0.2, (draw >= 0.2) & (draw < 0.3)
    weight[copy] = weight[other[copy]]
    near = weight[other[close]].view(torch.int16)
    near[:, column] ^= 1
    weight[close] = near.view(torch.bfloat16)


def drawn_head(v: int, k: int, generator: torch.Generator, column: int = 0) -> torch.Tensor:
    """`[v, k]` BF16 on the generator's device: Gaussian with `near_ties`."""
    weight = (torch.randn(v, k, generator=generator, device=generator.device) * 0.02).bfloat16()
    near_ties(weight, generator, column)
    return weight


def drawn_rows(weight: torch.Tensor, m: int, generator: torch.Generator) -> torch.Tensor:
    """`[m, k]` BF16, half random, half along a row of the head: its copies and neighbours tie or nearly tie."""
    x = torch.randn(m, weight.shape[1], generator=generator, device=weight.device)
    along = torch.randint(0, len(weight), (m // 2,), generator=generator, device=weight.device)
    x[: m // 2] = weight[along].float() * 50 + 0.01 * x[: m // 2]
    return x.bfloat16()


def head_weight(v: int, k: int, seed: int) -> torch.Tensor:
    """`drawn_head` of a seed, on the CPU."""
    return drawn_head(v, k, torch.Generator().manual_seed(seed), seed % k)


def rows_for(weight: torch.Tensor, m: int, seed: int) -> torch.Tensor:
    """`drawn_rows` of a seed, on the CPU."""
    return drawn_rows(weight, m, torch.Generator().manual_seed(seed + 1))
