"""The element-wise parts of the drafters, each as one function of flat rows, so that a GPU can run each as one kernel.

On one H200 a training step of the block drafters is bound by such parts and by launching them, not by its products.
Inside `with compiled():` each function is compiled at its first use (`torch.compile`, a few seconds each). Outside, or
on a CPU, or where the compiler fails, it runs as it is written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_ready: dict[str, Any] = {}
_state: dict[str, Any] = {"on": False, "failed": None}


@contextlib.contextmanager
def compiled(kind: str = "cuda", wanted: bool = True) -> Iterator[None]:
    """Compile for tensors of the device type `kind` inside; not inside a CUDA graph's capture."""
    before = _state["on"]
    _state["on"] = kind if wanted and _state["failed"] is None else False
    try:
        yield
    finally:
        _state["on"] = before


def active(x: Tensor) -> bool:
    """Whether the functions are compiled for `x`."""
    return bool(_state["on"] == x.device.type)


def failure() -> str | None:
    """What the compiler said when it failed, if it did."""
    said: str | None = _state["failed"]
    return said


def give_up(error: BaseException) -> None:
    """From now on everything runs as it is written."""
    _state["on"], _state["failed"] = False, f"{type(error).__name__}: {error}"[:300]
    print(f"fused: off, {_state['failed']}", flush=True)


def run(function: Callable[..., Tensor], *args: Any) -> Tensor:
    """`function(*args)`, compiled where that is on. Tensors have their rows, whose number varies, in front."""
    if not active(args[0]):
        return function(*args)
    name, rows = function.__name__, args[0].shape[0]
    try:
        if name not in _ready:
            _ready[name] = torch.compile(function)
        for arg in args:
            if isinstance(arg, Tensor) and arg.dim() > 1 and arg.shape[0] == rows:
                torch._dynamo.maybe_mark_dynamic(arg, 0)
        made: Tensor = _ready[name](*args)
    except Exception as error:  # no compiler there, or one that cannot: the training goes on without
        give_up(error)
        return function(*args)
    return made


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of rows x [N, C]: in float32, rounded back once."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of heads x [N, H, D] by cos and sin [N, D / 2]; halves are paired (NeoX style)."""
    first, second = x.float().chunk(2, -1)
    c, s = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((first * c - second * s, second * c + first * s), -1).to(x.dtype)


def normed_turned(x: Tensor, weight: Tensor, eps: float, cos: Tensor, sin: Tensor) -> Tensor:
    """RMSNorm of every head, then `turned`."""
    return turned(normed(x, weight, eps), cos, sin)


def gated(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU's product of rows [N, C]."""
    return F.silu(gate) * up


def convolved(x: Tensor, base: Tensor, wished: Tensor) -> Tensor:
    """A convolution over the rows of blocks whose kernel each row changes; nothing comes before a block's row 0.

    Args:
        x: [N, m, C].
        base: [taps, C]; tap t reads t rows before.
        wished: [N, m, taps, groups]: what each row adds to the base, for each group of channels.
    """
    taps, groups = wished.shape[2:]
    wide = x.float().unflatten(-1, (groups, -1))  # type: ignore[no-untyped-call]
    kernel = base.float().unflatten(-1, (groups, -1))  # type: ignore[no-untyped-call]
    out = wide * (kernel[0] + wished[:, :, 0].float().unsqueeze(-1))
    for tap in range(1, taps):
        row = F.pad(wide, (0, 0, 0, 0, tap, 0))[:, : x.shape[1]]
        out = out + row * (kernel[tap] + wished[:, :, tap].float().unsqueeze(-1))
    mixed: Tensor = out.flatten(-2).to(x.dtype)
    return mixed
