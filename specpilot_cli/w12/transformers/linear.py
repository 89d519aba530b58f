"""A linear layer from W12 records: the Hopper kernel on sm_90, Triton on other GPUs, decoded weights on a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.codec import codec, room

if TYPE_CHECKING:
    from specpilot_cli.w12.codec import Packed

PARTS = ("records", "window_low", "escape_start", "escape_column", "escape_bits")
PREPARED = ("patches", "hard_start", "hard_column", "hard_bits")


def on_hopper(device: torch.device) -> bool:
    """Whether the wgmma kernel runs there."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)


class W12Linear(nn.Module):
    """`y = x Wᵀ + b` for inference. The weight exists as records alone; `weight` decodes it on every access.

    Raises:
        InputUnusable: when made, where the packed bits are not the weight's (names `name` and the channel).
    """

    records: Tensor
    window_low: Tensor
    bias: Tensor | None

    def __init__(self, weight: Tensor, bias: Tensor | None, name: str) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        packed = codec().pack(weight)
        for part in PARTS:
            self.register_buffer(part, getattr(packed, part))
        prepared = room("w12_gemm.prepare").prepare(packed)
        for part in PREPARED:
            self.register_buffer(part, getattr(prepared, part))
        self.register_buffer("bias", None if bias is None else bias.detach())
        self._compare(weight, name)

    def _compare(self, weight: Tensor, name: str) -> None:
        """From what the products read, not from the stored parts: both have to be right."""
        wrong = (self.decoded().view(torch.int16) != weight.detach().view(torch.int16)).any(1).nonzero()
        if wrong.numel():
            raise InputUnusable(f"{name}, channel {int(wrong[0])}: the packed bits are not the loaded ones.")

    @property
    def packed(self) -> Packed:
        """The stored parts (`kernels/w12_pack`)."""
        shape = (self.out_features, self.in_features)
        return codec().W12Tensor(shape, *(getattr(self, part) for part in PARTS))

    @property
    def prepared(self) -> Any:
        """What the Hopper kernel reads (`kernels/w12_gemm/prepare.py`)."""
        shape = (self.out_features, self.in_features)
        return room("w12_gemm.prepare").Prepared(
            shape, self.records, self.window_low, *(getattr(self, part) for part in PREPARED)
        )

    @property
    def weight(self) -> Tensor:
        """BF16 `[N, K]`, decoded anew."""
        return self.decoded()

    def decoded(self) -> Tensor:
        """BF16 `[N, K]` from what the products read on this device."""
        if on_hopper(self.records.device):
            found: Tensor = room("w12_gemm.op").expand(self.prepared)
            return found
        restored: Tensor = room("w12_gemm.prepare").restore(self.prepared)
        return restored

    @property
    def bytes_held(self) -> int:
        """Of all buffers."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self.buffers())

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        """`[…, K]` to `[…, N]`. `residual […, N]` is overwritten with the result plus itself, and returned.

        Raises:
            RuntimeError: a gradient would have to flow through it.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError("W12 weights are for inference: call the model under torch.no_grad()")
        rows = x.reshape(-1, self.in_features)
        add = None if residual is None else residual.view(-1, self.out_features)
        out = self._hopper(rows.contiguous(), add) if on_hopper(x.device) else _added(self._portable(rows), add)
        return out.view(*x.shape[:-1], self.out_features) if residual is None else residual

    def _hopper(self, rows: Tensor, residual: Tensor | None) -> Tensor:
        op = room("w12_gemm.op")
        if not 0 < rows.shape[0] <= op.MAX_ROWS:
            return _added(nn.functional.linear(rows, self.decoded(), self.bias), residual)
        out: Tensor = op.matmul(rows, self.prepared, residual, bias=self.bias, residual=residual, launch=op.EARLY)
        return out

    def _portable(self, rows: Tensor) -> Tensor:
        if rows.device.type == "cuda" and rows.shape[0]:
            y: Tensor = room("w12_gemm.triton_kernel").matmul(rows, self.packed)
            return y if self.bias is None else y + self.bias
        return nn.functional.linear(rows, codec().unpack(self.packed), self.bias)

    def extra_repr(self) -> str:
        """What `print(model)` says."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def takes(linear: nn.Linear) -> bool:
    """Whether a linear can be W12: BF16, at least one record tile, and the shape the kernels take."""
    rows, columns = linear.weight.shape
    return linear.weight.dtype == torch.bfloat16 and rows >= 128 and columns >= 64 and rows % 2 == columns % 8 == 0


def _added(y: Tensor, residual: Tensor | None) -> Tensor:
    return y if residual is None else residual.add_(y)


def product(linear: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
    """`residual += linear(x)` in place, `[M, N]`, in one kernel where the layer allows it."""
    if isinstance(linear, W12Linear):
        return linear(x, residual)  # type: ignore[no-any-return]
    if type(linear) is nn.Linear and linear.bias is None:
        return residual.addmm_(x, linear.weight.t())
    return residual.add_(linear(x))
