"""Random lattices, half of them full of ties, through the kernels and the reference: `python cases.py cpu|cuda`."""

import itertools
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import op, reference  # noqa: E402

SHAPES = [(1, 1, 1), (2, 3, 4), (3, 5, 7), (2, 8, 16), (1, 16, 16), (1, 2, 40)]
NODES = (1, 2, 15, 33)
ON_A_DEVICE = [(3, 5, 7), (2, 16, 16)], (1, 33, 192)
"""Fewer sizes there: every one is compiled anew."""


def lattice(
    batch: int, positions: int, candidates: int, seed: int, ties: bool, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, unary, pair; scores with ties are multiples of 1/4."""
    draw = torch.Generator().manual_seed(seed)
    shape = (batch, positions, candidates)
    ids = torch.randint(1, 50_000, shape, generator=draw).int()
    if ties:
        unary = -torch.randint(0, 4, shape, generator=draw) / 4
        pair = -torch.randint(0, 4, (*shape, candidates), generator=draw) / 4
    else:
        unary = (2 * torch.randn(shape, generator=draw)).log_softmax(-1)
        pair = (2 * torch.randn(*shape, candidates, generator=draw)).log_softmax(-1)
    pair[:, 0] = pair[:, 0, :1]
    return ids.to(device), unary.to(device), pair.contiguous().to(device)


def differences(
    ids: torch.Tensor,
    unary: torch.Tensor | None,
    pair: torch.Tensor | None,
    nodes: int,
    seed: int,
    variant: str = "triton",
) -> list[str]:
    """Names of the outputs that are not the reference's. Outputs are poisoned first: what nobody wrote is wrong."""
    tree = op.Tree.empty(ids.shape[0], nodes, ids.device)
    for name, buffer in vars(tree).items():
        buffer.fill_(True if name == "mask" else -77)
    op.select(ids, unary, pair, nodes, out=tree, variant=variant)
    wrong = []
    for b, listed in enumerate(reference.select(unary, pair, nodes)):
        for name, expected in reference.arrays(listed, ids[b].cpu(), nodes).items():
            if not torch.equal(getattr(tree, name)[b].cpu().to(expected.dtype), expected):
                wrong.append(f"{variant}: {name} of request {b} (seed {seed}, {list(ids.shape)}, {nodes} nodes)")
    return wrong


def threshold_cases() -> tuple[int, list[str]]:
    """More sizes for the variant that is compiled once: lists that overflow, all tied, short lattices, -inf scores."""
    wrong: list[str] = []
    count = 0
    shapes = [(1, 1, 1), (2, 3, 4), (3, 5, 7), (2, 8, 16), (2, 16, 16), (1, 2, 32), (2, 63, 5), (1, 16, 24), (1, 6, 3)]
    kinds = itertools.product(shapes, (1, 2, 15, 33, 63, 129, 192, 255), (False, True), ("both", "pair", "unary"))
    for seed, (shape, nodes, ties, kind) in enumerate(kinds):
        ids, unary, pair = lattice(*shape, seed, ties, "cuda")
        given = None if kind == "pair" else unary, None if kind == "unary" else pair
        wrong += differences(ids, *given, nodes, seed, "threshold")
        count += 1
    for seed in range(20):
        ids, unary, pair = lattice(2, 5, 4, seed, bool(seed % 2), "cuda")
        hidden = torch.rand(pair.shape, generator=torch.Generator().manual_seed(seed)) < 0.4
        pair[hidden.cuda()] = -float("inf")
        flat = torch.zeros_like(pair)
        for scores, nodes in ((pair, 255), (pair, 63), (flat, 63)):
            wrong += differences(ids, None, scores, nodes, seed, "threshold")
            count += 1
    return count, wrong


def main(device: str) -> int:
    """Every shape, budget, kind of scores and of ties."""
    wrong: list[str] = []
    count = 0
    shapes, budgets = (SHAPES, NODES) if device == "cpu" else ON_A_DEVICE
    for seed, (shape, nodes, ties, kind) in enumerate(
        itertools.product(shapes, budgets, (False, True), ("both", "pair", "unary"))
    ):
        ids, unary, pair = lattice(*shape, seed, ties, device)
        wrong += differences(ids, None if kind == "pair" else unary, None if kind == "unary" else pair, nodes, seed)
        count += 1
    if device == "cuda":
        more, found = threshold_cases()
        count, wrong = count + more, wrong + found
    for line in wrong[:20]:
        print("WRONG", line)
    print(f"{count} lattices, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
