"""The public calls: `verify` a tree of draft tokens without a state a row, `commit` the path that was accepted.

The state pool is SGLang's: float32 `[slots, HV, V, K]`, read by `verify` and changed by `commit` alone.
"""

from __future__ import annotations

from typing import Literal

import torch
from specpilot_kernels.gdn_tree.reference import Inputs

__all__ = ["MAX_ROWS", "Inputs", "ancestors", "commit", "commit_layers", "verify"]

MAX_ROWS = 64
"""Bits of a word: the anchor and 63 draft tokens."""
Variant = Literal["wy", "path", "cuda"]
"""`cuda` takes BF16 rows with key heads of 16 to 128, and needs sm_90 and nvcc (`native.py`)."""


def ancestors(parents: torch.Tensor) -> torch.Tensor:
    """`[B, N]` int64: bit j of word i is set where row j is row i or one of its ancestors.

    Args:
        parents: `[B, N]` integers, each below its own row's number; negative for rows that hang on the committed state.
    The kernels share it between all layers of a step: one call a step. Stays on the device, without reading it back.
    """
    requests, rows = parents.shape
    if rows > MAX_ROWS:
        raise ValueError(f"at most {MAX_ROWS} rows a request, got {rows}")
    parent = parents.long()
    own = torch.ones((), dtype=torch.int64, device=parent.device) << torch.arange(rows, device=parent.device)
    bits, up = own.expand(requests, rows).clone(), parent
    for _ in range(rows.bit_length()):  # each round doubles the distance that has been followed
        inside = up >= 0
        at = up.clamp(min=0)
        bits |= torch.where(inside, bits.gather(1, at), 0)
        up = torch.where(inside, up.gather(1, at), -1)
    return bits


def verify(
    x: Inputs, state: torch.Tensor, slots: torch.Tensor, tree: torch.Tensor, scale: float, variant: Variant = "wy"
) -> torch.Tensor:
    """`[B, N, HV, V]` in v's type: every row's output along its own path from the committed state.

    Args:
        x: rows may be strided views (all but the last dimension).
        state: `[slots, HV, V, K]` float32; not changed.
        slots: `[B]` integers; a negative one means a state of zeros.
        tree: `ancestors`.
        variant: `path` repeats the engine's own recurrence step by step, and equals it bit for bit on chains;
            `wy` solves all paths at once with matrix products; `cuda` too, by forward substitution.
    Raises:
        ValueError: shapes or types that do not fit.
    """
    _check(x, state, slots, tree)
    if variant == "cuda":
        from specpilot_kernels.gdn_tree import native

        return native.verify(x, state, slots, tree, scale)
    if variant == "path":
        from specpilot_kernels.gdn_tree import triton_path

        return triton_path.verify(x, state, slots, tree, scale)
    from specpilot_kernels.gdn_tree import triton_wy

    return triton_wy.verify(x, state, slots, tree, scale)


def commit(
    x: Inputs,
    state: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lengths: torch.Tensor,
    variant: Variant = "path",
) -> None:
    """Move the state of every request along its accepted rows, in place.

    Args:
        x, state, slots: as for `verify`; requests with a negative slot are left out.
        path: `[B, D]` integers, row numbers in order; those from `lengths[b]` on are not read as rows.
        lengths: `[B]` integers from 0 to D.
        variant: as for `verify`, but `cuda` takes the steps of `path`, with the same bits where K is 128.
    """
    _check(x, state, slots, None)
    _check_path(slots, path, lengths)
    if variant == "cuda":
        from specpilot_kernels.gdn_tree import native

        return native.commit(x, state, slots, path, lengths)
    if variant == "path":
        from specpilot_kernels.gdn_tree import triton_path

        return triton_path.commit(x, state, slots, path, lengths)
    from specpilot_kernels.gdn_tree import triton_wy

    return triton_wy.commit(x, state, slots, path, lengths)


def commit_layers(
    x: Inputs,
    state: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lengths: torch.Tensor,
    variant: Variant = "path",
) -> None:
    """`commit` of L layers that share slots and path; `cuda` does it in one launch.

    Args:
        x: every tensor with a leading dimension of layers.
        state: `[L, slots, HV, V, K]` float32.
        slots, path, lengths, variant: as for `commit`.
    """
    if any(len(getattr(x, name)) != len(state) for name in x.__dataclass_fields__):
        raise ValueError(f"inputs of {len(x.k)} layers, states of {len(state)}")
    if variant != "cuda":
        for layer, own in enumerate(state):
            commit(x.layer(layer), own, slots, path, lengths, variant)
        return
    from specpilot_kernels.gdn_tree import native

    _check(x.layer(0), state[0], slots, None)
    _check_path(slots, path, lengths)
    native.commit_layers(x, state, slots, path, lengths)


def _check_path(slots: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor) -> None:
    if path.dim() != 2 or len(path) != len(slots) or lengths.shape != slots.shape:
        raise ValueError(
            f"path {tuple(path.shape)} and lengths {tuple(lengths.shape)} do not fit {len(slots)} requests"
        )


def _check(x: Inputs, state: torch.Tensor, slots: torch.Tensor, tree: torch.Tensor | None) -> None:
    requests, rows, heads, width = x.k.shape
    value_heads, height = x.v.shape[2:]
    wanted = {"q": (x.q, x.k.shape), "v": (x.v, (requests, rows, value_heads, height))}
    wanted |= {name: (getattr(x, name), (requests, rows, value_heads)) for name in ("a", "b")}
    wanted |= {name: (getattr(x, name), (value_heads,)) for name in ("a_log", "dt_bias")}
    wanted["state"] = (state, (len(state), value_heads, height, width))
    wanted["slots"] = (slots, (requests,))
    if tree is not None:
        wanted["tree"] = (tree, (requests, rows))
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != tuple(shape):
            raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {tuple(shape)}")
    if rows > MAX_ROWS or value_heads % heads:
        raise ValueError(f"{rows} rows (at most {MAX_ROWS}), {value_heads} value heads for {heads} key heads")
    if state.dtype != torch.float32 or state[0].stride() != state[0].contiguous().stride():
        raise ValueError("the state must be float32, each slot contiguous")
    if any(width & (width - 1) or width < 16 for width in (width, height)):
        raise ValueError(f"head dimensions must be powers of two of at least 16, got {width} and {height}")
