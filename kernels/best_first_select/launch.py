"""Launches of the Triton kernels on checked arguments: `pick` or `choose` first, then `link`."""

from typing import Protocol

import torch
import triton
from specpilot_kernels.best_first_select import kernel, triton_select

LINK_ROWS, LINK_WARPS = 4, 4


class Buffers(Protocol):
    """`op.Tree`."""

    parents: torch.Tensor
    tokens: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    mask: torch.Tensor
    picked: torch.Tensor
    work: torch.Tensor


def popped(ids: torch.Tensor, unary: torch.Tensor | None, pair: torch.Tensor | None, nodes: int, out: Buffers) -> None:
    """`out.picked` and `out.scores` by popping node after node, one warp a request; arguments as in `op.select`."""
    batch, positions, candidates = ids.shape
    stand_in = ids  # never read where the flag says absent
    kernel.pick[(batch,)](
        stand_in if unary is None else unary,
        stand_in if pair is None else pair,
        out.picked,
        out.scores,
        D=positions,
        K=candidates,
        N=nodes,
        WIDTH=max(32, triton.next_power_of_2(candidates)),
        HAS_UNARY=unary is not None,
        HAS_PAIR=pair is not None,
        MAY_END=nodes > paths(positions, candidates, nodes),
        num_warps=1,
    )


def can_choose(device: torch.device) -> bool:
    """Whether `choose` runs there: on NVIDIA devices from Ampere on (`redux.sync`), and in the interpreter."""
    if device.type != "cuda":
        return True
    return torch.version.hip is None and torch.cuda.get_device_capability(device) >= (8, 0)


def chosen(
    ids: torch.Tensor,
    unary: torch.Tensor | None,
    pair: torch.Tensor | None,
    nodes: int,
    out: Buffers,
    shape: triton_select.Shape = triton_select.DEFAULT,
    clocks: torch.Tensor | None = None,
) -> bool:
    """`out.picked` and `out.scores` depth by depth, the list in shared memory; arguments as in `op.select`.

    Gives whether `link` may start early.

    clocks: `[B, 2 * len(triton_select.PHASES)]` int64 for cycles and visits of each phase, in a build of its own
    (`probe.py`).
    """
    batch, positions, candidates = ids.shape
    stand_in = ids
    width = triton.next_power_of_2(candidates)
    edges = triton_select.cached_edges(positions, candidates, pair is not None) if shape.cached else 0
    early = shape.early and ids.is_cuda and torch.cuda.get_device_capability(ids.device) >= (9, 0)
    triton_select.choose[(batch,)](
        stand_in if unary is None else unary,
        stand_in if pair is None else pair,
        out.picked,
        out.scores,
        out.work,
        stand_in if clocks is None else clocks,
        D=positions,
        K=candidates,
        N=nodes,
        WIDTH=width,
        POP_WIDTH=max(32, width),
        CHUNK=shape.chunk,
        LISTED=shape.listed,
        SORTED=triton_select.sorted_at_most(nodes, shape.warps),
        SIZE=triton_select.WORDS + edges,
        EDGE_COUNT=edges,
        HAS_UNARY=unary is not None,
        HAS_PAIR=pair is not None,
        MAY_END=nodes > paths(positions, candidates, nodes),
        NATIVE=not triton.knobs.runtime.interpret,
        WARPS=shape.warps,
        EARLY=early,
        PROFILE=clocks is not None,
        num_warps=shape.warps,
    )
    return early


def link(
    ids: torch.Tensor,
    nodes: int,
    out: Buffers,
    early: bool = False,
    rows: int = LINK_ROWS,
    warps: int = LINK_WARPS,
) -> None:
    """The rest of `out` from `out.picked`, `rows` rows a program.

    early: the kernel in front allows this one to start before its end.
    """
    launched = {"launch_pdl": True} if early else {}
    batch, positions, candidates = ids.shape
    kernel.link[(batch, triton.cdiv(nodes + 1, rows))](
        out.picked,
        ids,
        out.parents,
        out.tokens,
        out.depths,
        out.next_token,
        out.next_sibling,
        out.mask.view(torch.int8),
        D=positions,
        K=candidates,
        N=nodes,
        COLUMNS=triton.next_power_of_2(nodes + 1),
        ROWS=rows,
        WAITS=early,
        num_warps=warps,
        **launched,
    )


def paths(positions: int, candidates: int, enough: int) -> int:
    """Paths in a lattice, counted up to `enough`: with fewer than N a tree has empty slots."""
    total = layer = candidates
    for _ in range(1, positions):
        if total >= enough:
            break
        layer *= candidates
        total += layer
    return total
