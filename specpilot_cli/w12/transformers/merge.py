"""Linears of one input as one product: query, key and value, gate and up. The model's own code stays as it is.

Its attention calls `q_proj(x)`, `k_proj(x)`, `v_proj(x)`: the first call computes all of them, the others take their
columns. A call with another input computes anew, so the order of calls can change the time and never the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import torch
from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Group(nn.Module):
    """One product for several layers; `product` is an `nn.Linear` until `quantize` replaces it."""

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.sizes = tuple(linear.out_features for linear in linears)
        self.product: nn.Module = _stacked(linears)
        self._held: tuple[Tensor, int, Tensor] | None = None  # input, its version, output

    def place(self, index: int) -> tuple[int, int]:
        """First column and number of columns of layer `index`."""
        return sum(self.sizes[:index]), self.sizes[index]

    def part(self, index: int, x: Tensor) -> Tensor:
        """Columns of the product that belong to layer `index`, a view."""
        if self._held is None or self._held[0] is not x or self._held[1] != x._version:
            self._held = (x, x._version, self.product(x))
        found = self._held[2].narrow(-1, *self.place(index))
        if index == len(self.sizes) - 1:
            self._held = None  # the last one has taken its part: nothing is kept alive
        return found


class Share(nn.Module):
    """One of the merged layers, under its own name."""

    group: Group

    def __init__(self, group: Group, index: int) -> None:
        super().__init__()
        if index == 0:
            self.group = group
        else:  # registered once: its weight belongs to the first
            object.__setattr__(self, "group", group)
        self.index = index
        self.out_features = group.sizes[index]

    @property
    def weight(self) -> Tensor:
        """BF16 `[N, K]` of this layer."""
        weight: Tensor = self.group.product.weight  # type: ignore[assignment]
        return weight.narrow(0, *self.group.place(self.index))

    def forward(self, x: Tensor) -> Tensor:
        """`[…, K]` to `[…, N]`."""
        return self.group.part(self.index, x)


def _stacked(linears: list[nn.Linear]) -> nn.Linear:
    """The layers as one. Biases are all there or all missing."""
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    made = nn.Linear(weight.shape[1], weight.shape[0], bias=bool(biases), device="meta", dtype=weight.dtype)
    made.weight = nn.Parameter(weight, requires_grad=False)
    if biases:
        made.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
    return made.train(linears[0].training)


def _alike(linears: list[nn.Module | None]) -> bool:
    plain = [linear for linear in linears if type(linear) is nn.Linear]
    kinds = {(p.in_features, p.bias is None, p.weight.dtype, p.weight.device) for p in plain}
    return len(plain) == len(linears) and len(kinds) == 1


def merge(model: nn.Module, stays: Callable[[str], bool] = lambda name: False) -> int:
    """Merges what can be merged, in place; returns how many products became fewer.

    Layers whose name `stays` accepts and layers that share a weight with others are left alone. The state dict has
    other names afterwards: save the model before.
    """
    spared = 0
    uses = Counter(id(m.weight) for m in model.modules() if isinstance(m, nn.Linear | nn.Embedding))
    for path, parent in list(model.named_modules()):
        for names in SIBLINGS:
            linears = [getattr(parent, name, None) for name in names]
            if not _alike(linears) or any(stays(f"{path}.{name}") for name in names):
                continue
            plain = [linear for linear in linears if isinstance(linear, nn.Linear)]
            if any(uses[id(linear.weight)] > 1 for linear in plain):
                continue
            group = Group(plain)
            for index, name in enumerate(names):
                setattr(parent, name, Share(group, index))
            spared += len(names) - 1
    return spared
