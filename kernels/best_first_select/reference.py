"""The contract, plainly: a heap a request. Slow, obvious, float32 sums from the anchor down.

edges[b, d, p, c] = unary[b, d, c] + pair[b, d, p, c] (either may be absent) is log p(candidate c at position d | parent
candidate p at position d - 1); what is above 0 counts as 0, NaN too, and at position 0 every p means the anchor. The N
nodes of the highest path score are the tree; equal scores: shallower first, then lower rank, then lower parent (paper
section 4.2).
"""

import heapq

import torch

EMPTY, ROOT, NONE = -2, -1, -1


def edges_of(unary: torch.Tensor | None, pair: torch.Tensor | None) -> torch.Tensor:
    """Float32 edge scores `[B, D, K, K]`."""
    if pair is None:
        assert unary is not None
        return unary.float().unsqueeze(2).expand(-1, -1, unary.shape[2], -1)
    return pair.float() if unary is None else unary.float().unsqueeze(2) + pair.float()


def select(unary: torch.Tensor | None, pair: torch.Tensor | None, nodes: int) -> list[list[tuple[int, int, int]]]:
    """Per request the (parent slot, position, candidate rank) of each node, in the order of the tie rule."""
    edges = edges_of(unary, pair).cpu().clamp(max=0)
    edges = torch.where(edges.isnan(), 0.0, edges)
    return [_select_one(request, nodes) for request in edges]


def _select_one(edges: torch.Tensor, nodes: int) -> list[tuple[int, int, int]]:
    tree: list[tuple[int, int, int]] = []
    heap: list[tuple[float, int, int, int]] = []

    def push(parent: int, depth: int, rank: int, base: torch.Tensor) -> None:
        if depth < edges.shape[0]:
            for child, score in enumerate((base + edges[depth, rank]).tolist()):
                heapq.heappush(heap, (-score, depth, child, parent))

    push(ROOT, 0, 0, torch.tensor(0.0))
    while heap and len(tree) < nodes:
        cost, depth, rank, parent = heapq.heappop(heap)
        tree.append((parent, depth, rank))
        push(len(tree) - 1, depth + 1, rank, torch.tensor(-cost))
    return tree


def arrays(tree: list[tuple[int, int, int]], ids: torch.Tensor, nodes: int) -> dict[str, torch.Tensor]:
    """What verification reads, by definition; ids `[D, K]` of one request. Row 0 is the anchor, row i + 1 node i."""
    rows = nodes + 1
    parent = [EMPTY] + [p + 1 for p, _, _ in tree]  # by row
    first, following = [NONE] * rows, [NONE] * rows
    mask = torch.eye(rows, dtype=torch.bool)
    for row in range(1, len(parent)):
        siblings = [other for other in range(1, len(parent)) if parent[other] == parent[row]]
        later = [other for other in siblings if other > row]
        following[row] = later[0] if later else NONE
        first[parent[row]] = siblings[0]
        above = parent[row]
        while above >= 0:
            mask[row, above] = True
            above = parent[above]
    empty = nodes - len(tree)
    return {
        "parents": torch.tensor([p for p, _, _ in tree] + [EMPTY] * empty),
        "tokens": torch.tensor([int(ids[d, r]) for _, d, r in tree] + [0] * empty),
        "depths": torch.tensor([d + 1 for _, d, _ in tree] + [0] * empty),
        "next_token": torch.tensor(first),
        "next_sibling": torch.tensor(following),
        "mask": mask,
    }
