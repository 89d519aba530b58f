"""Muon (K. Jordan et al., 2024): momentum whose singular values are all made about one; for matrices.

Matrices of one shape are handled together, so that a step is a few batched products instead of hundreds of small ones.
The step's size is AdamW's (0.2 in root mean square, arXiv 2502.16982), so that both share a learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of the iteration x -> a x + b x^3 + c x^5 on the singular values."""


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """[n, r, c] -> matrices with the same singular vectors and singular values between about 0.7 and 1.2."""
    a, b, c = QUINTIC
    x = matrices.bfloat16() if matrices.device.type == "cuda" else matrices.float()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    made: Tensor = x.mT if tall else x
    return made


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal; decoupled weight decay."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all matrices that have a gradient."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_shape.setdefault(tuple(parameter.shape), []).append((parameter, parameter.grad))
            for shape, pairs in by_shape.items():
                same, grads = ([pair[i] for pair in pairs] for i in (0, 1))
                held = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in same]
                torch._foreach_lerp_(held, grads, 1 - group["momentum"])
                ahead = torch._foreach_lerp(grads, held, group["momentum"])
                update = orthogonal(torch.stack(list(ahead))) * (0.2 * max(shape) ** 0.5)
                torch._foreach_mul_(same, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_add_(same, list(update.to(same[0].dtype).unbind(0)), alpha=-group["lr"])
