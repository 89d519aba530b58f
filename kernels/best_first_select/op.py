"""Best-first draft trees on the GPU: N nodes a request in one call, no host read, safe inside CUDA graphs."""

from dataclasses import dataclass

import torch
from specpilot_kernels.best_first_select import launch, threshold, triton_select

LIMITS = {"positions": 63, "candidates": 128, "nodes": 255}
VARIANTS = ("triton", "triton-select", "threshold")
FROM_NODES = 40
"""From so many nodes on triton-select is faster than popping (README)."""


@dataclass(frozen=True)
class Tree:
    """Trees of B requests; row 0 is the anchor, row i + 1 node i. Buffers may be reused from call to call.

    parents, tokens, depths, scores `[B, N]`: node slots; parents -1 for the anchor, -2 for an empty slot (token 0,
    depth 0). next_token, next_sibling `[B, N + 1]`: first child and next sibling row, -1 for none (EAGLE's
    `retrieve_next_token`, `retrieve_next_sibling`; `retrieve_index` is the row's own number). mask
    `[B, N + 1, N + 1]` bool: row i sees row j (itself and its ancestors).
    """

    parents: torch.Tensor
    tokens: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    mask: torch.Tensor
    picked: torch.Tensor
    work: torch.Tensor

    @classmethod
    def empty(cls, batch: int, nodes: int, device: torch.device) -> "Tree":
        """Buffers for `select`."""

        def integers(*shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        rows = nodes + 1
        return cls(
            parents=integers(batch, nodes),
            tokens=integers(batch, nodes),
            depths=integers(batch, nodes),
            scores=torch.empty(batch, nodes, dtype=torch.float32, device=device),
            next_token=integers(batch, rows),
            next_sibling=integers(batch, rows),
            mask=torch.empty(batch, rows, rows, dtype=torch.bool, device=device),
            picked=integers(batch, nodes),
            # the list of triton-select, where the interpreter has no shared memory
            work=integers(batch, 1 if device.type == "cuda" else triton_select.WORDS + triton_select.MOST_EDGES),
        )


def select(
    ids: torch.Tensor,
    unary: torch.Tensor | None,
    pair: torch.Tensor | None,
    nodes: int,
    out: Tree | None = None,
    variant: str | None = None,
) -> Tree:
    """The `nodes` best paths of every lattice, by the float32 sum of edge scores from the anchor down.

    Equal scores: shallower first, then lower rank, then lower parent. Edge scores are
    `unary + pair`, log-probabilities (what is above 0 counts as 0, and so does NaN); at position 0 every row of `pair`
    means "given the anchor".

    Args:
        ids: `[B, D, K]` int32 candidates. unary: `[B, D, K]` float32 or None. pair: `[B, D, K, K]` float32 or None,
            indexed [parent, child]. nodes: N, fixed at compile time.
        out: buffers to write, from `Tree.empty`.
        variant: one of `VARIANTS` ("threshold": at most 32 candidates, nvcc once); None: the fastest one measured.
    Raises:
        ValueError: shapes, types or sizes that do not fit, neither unary nor pair, or a variant that the device cannot
            run.
    """
    batch = ids.shape[0]
    _check(ids, unary, pair, nodes)
    tree = Tree.empty(batch, nodes, ids.device) if out is None else out
    if tree.parents.shape != (batch, nodes):
        raise ValueError(f"out holds {list(tree.parents.shape)} nodes, not {[batch, nodes]}")
    if variant not in (None, *VARIANTS):
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {variant}")
    if variant == "threshold":
        if not threshold.fits(ids, pair):
            raise ValueError(
                "threshold needs a CUDA device, nvcc, at most 32 candidates and a lattice of shared-memory size"
            )
        threshold.select(ids, unary, pair, nodes, tree)
        return tree
    if variant == "triton-select" and not launch.can_choose(ids.device):
        raise ValueError("triton-select needs an NVIDIA device of compute capability 8.0 or higher")
    early = False
    if variant == "triton-select" or (variant is None and nodes >= FROM_NODES and launch.can_choose(ids.device)):
        early = launch.chosen(ids, unary, pair, nodes, tree)
    else:
        launch.popped(ids, unary, pair, nodes, tree)
    launch.link(ids, nodes, tree, early)
    return tree


def _check(ids: torch.Tensor, unary: torch.Tensor | None, pair: torch.Tensor | None, nodes: int) -> None:
    batch, positions, candidates = ids.shape
    sizes = {"positions": positions, "candidates": candidates, "nodes": nodes}
    for name, size in sizes.items():
        if not 1 <= size <= LIMITS[name]:
            raise ValueError(f"{name} must be from 1 to {LIMITS[name]}, not {size}")
    if unary is None and pair is None:
        raise ValueError("give unary scores, pair scores or both")
    wanted = {
        "ids": (ids, torch.int32, (batch, positions, candidates)),
        "unary": (unary, torch.float32, (batch, positions, candidates)),
        "pair": (pair, torch.float32, (batch, positions, candidates, candidates)),
    }
    for name, (tensor, dtype, shape) in wanted.items():
        if tensor is None:
            continue
        if tensor.dtype != dtype or tuple(tensor.shape) != shape or not tensor.is_contiguous():
            raise ValueError(
                f"{name} must be contiguous {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}"
            )
        if tensor.device != ids.device:
            raise ValueError(f"{name} is on {tensor.device}, ids on {ids.device}")
