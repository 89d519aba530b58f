"""Weights as checkpoints have them, and weights as no checkpoint should."""

import torch


def realistic_weight(n: int, k: int, device: str, seed: int) -> torch.Tensor:
    """Gaussian BF16 `[n, k]`, standard deviation 0.02 times a per-channel factor between 1/2 and 2."""
    generator = torch.Generator(device=device).manual_seed(seed)
    spread = torch.rand(n, 1, device=device, generator=generator) * 2 - 1
    weight = torch.randn(n, k, device=device, generator=generator)
    return (weight * 0.02 * torch.exp2(spread)).bfloat16()


def adversarial_weight(n: int, k: int, device: str, seed: int) -> torch.Tensor:
    """`realistic_weight` with 1 % zeros, denormals, tiny and huge values, and one channel of escapes only."""
    generator = torch.Generator(device=device).manual_seed(seed + 1)
    weight = realistic_weight(n, k, device, seed)
    draw = torch.rand(n, k, device=device, generator=generator)
    for low, value in ((0.0, 0.0), (0.002, 1e-39), (0.004, -3e-20), (0.006, 700.0), (0.008, -0.0)):
        weight[(draw >= low) & (draw < low + 0.002)] = value
    weight[n // 3] = 0.0
    return weight


def activations(m: int, k: int, device: str, seed: int) -> torch.Tensor:
    """Gaussian BF16 `[m, k]` with a few columns 50 times larger, as residual streams have."""
    generator = torch.Generator(device=device).manual_seed(seed + 2)
    x = torch.randn(m, k, device=device, generator=generator)
    x[:, :: max(1, k // 5)] *= 50
    return x.bfloat16()
