"""Random lattices, half of them full of ties, through the kernels and the reference: `python cases.py cpu|few|cuda`.

"cpu" and "few" run in Triton's interpreter (`TRITON_INTERPRET=1`), minutes and seconds.
"""

import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")

import torch  # noqa: E402
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.best_first_select import launch, op, reference, threshold, triton_select  # noqa: E402

KINDS = ("both", "pair", "unary")
Size = tuple[int, int, int]
"""Requests, positions, candidates."""


@dataclass(frozen=True)
class Plan:
    """What is compared: every kind of scores of each size and budget with and without ties by both Triton variants, and
    more by triton-select."""

    device: str
    sizes: list[tuple[Size, int, tuple[str, ...]]]
    wide: list[tuple[Size, int, bool]]
    """With another shape of the program than the default where the last is true."""
    wide_kinds: tuple[str, ...]
    odd: range
    """Seeds of `odd_scores`."""
    most: int = 255
    """No more nodes than these."""


WIDE: list[tuple[Size, int, bool]] = [((2, 8, 16), 63, True), ((1, 4, 24), 129, False)]
MORE_WIDE: list[tuple[Size, int, bool]] = [
    ((1, 16, 16), 192, False), ((1, 16, 16), 255, True), ((1, 63, 5), 63, False), ((1, 6, 3), 192, False),
    ((1, 3, 100), 129, True),
]  # fmt: skip
SHAPES: list[Size] = [(1, 1, 1), (2, 3, 4), (3, 5, 7), (2, 8, 16), (1, 16, 16), (1, 2, 40)]
PLANS = {
    "cpu": Plan("cpu", [(s, n, KINDS) for s in SHAPES for n in (1, 2, 15, 33)], WIDE + MORE_WIDE, KINDS[:2], range(4)),
    "few": Plan(
        "cpu", [((1, 1, 1), 2, KINDS), ((2, 3, 4), 15, ("both",))], [((1, 8, 16), 40, True)], ("pair",), range(2, 3), 63
    ),
    # every size, budget and kind is compiled anew there
    "cuda": Plan("cuda", [((3, 5, 7), 33, KINDS), ((2, 16, 16), 192, ("pair",))], WIDE, ("pair",), range(4)),
}


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


def run(
    ids: torch.Tensor,
    unary: torch.Tensor | None,
    pair: torch.Tensor | None,
    nodes: int,
    out: op.Tree,
    variant: str,
    shape: triton_select.Shape | None = None,
) -> None:
    """`op.select`; with another `shape` of the variant triton-select than its default."""
    if shape is None:
        op.select(ids, unary, pair, nodes, out=out, variant=variant)
    else:
        launch.link(ids, nodes, out, launch.chosen(ids, unary, pair, nodes, out, shape))


def differences(
    ids: torch.Tensor,
    unary: torch.Tensor | None,
    pair: torch.Tensor | None,
    nodes: int,
    seed: int,
    variant: str = "triton",
    shape: triton_select.Shape | None = None,
) -> list[str]:
    """Names of the outputs that are not the reference's. Outputs are poisoned first: what nobody wrote is wrong."""
    tree = op.Tree.empty(ids.shape[0], nodes, ids.device)
    for name, buffer in vars(tree).items():
        buffer.fill_(True if name == "mask" else -77)
    run(ids, unary, pair, nodes, tree, variant, shape)
    wrong = []
    for b, listed in enumerate(reference.select(unary, pair, nodes)):
        for name, expected in reference.arrays(listed, ids[b].cpu(), nodes).items():
            if not torch.equal(getattr(tree, name)[b].cpu().to(expected.dtype), expected):
                place = f"request {b} (seed {seed}, {list(ids.shape)}, {nodes} nodes)"
                wrong.append(f"{variant}{shape or ''}: {name} of {place}")
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
    for ids, scores, nodes, seed in odd_scores("cuda", range(20)):
        wrong += differences(ids, None, scores, nodes, seed, "threshold")
        count += 1
    return count, wrong


def odd_scores(device: str, seeds: range) -> Iterator[tuple[torch.Tensor, torch.Tensor, int, int]]:
    """ids, pair scores, nodes, seed: with -inf in them, with NaN and positive ones in them, and all of them 0."""
    for seed in seeds:
        ids, _, pair = lattice(2, 5, 4, seed, bool(seed % 2), device)
        drawn = torch.rand(pair.shape, generator=torch.Generator().manual_seed(seed)).to(device)
        pair[drawn < 0.4] = -float("inf")
        odd = pair.clone()
        odd[drawn > 0.9], odd[drawn > 0.95] = float("nan"), 1.5
        # what is popped in the interpreter passes NaN on (NumPy's maximum), on a device it does not
        with_nan = [(odd, 63)] if device == "cuda" or seed % 2 == 0 else []
        for scores, nodes in ((pair, 255), (pair, 63), (torch.zeros_like(pair), 63), *with_nan):
            yield ids, scores, nodes, seed


def given_of(kind: str, unary: torch.Tensor, pair: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The scores of a kind: both, pair or unary."""
    return None if kind == "pair" else unary, None if kind == "unary" else pair


def select_cases(plan: Plan) -> tuple[int, list[str]]:
    """What the sizes of all do not reach: many nodes, wide lattices, odd scores, other shapes of the program, and both
    reasons to pop instead: a list that overflows, too many nodes at the limit."""
    wrong: list[str] = []
    count = 0
    variant, make = "triton-select", triton_select.Shape
    for seed, ((size, nodes, other), step) in enumerate(itertools.product(plan.wide, (0, 8))):
        ids, unary, pair = lattice(*size, seed, False, plan.device)
        if step:  # ties all along
            unary, pair = (unary * step).round() / step, (pair * step).round() / step
        for kind in plan.wide_kinds:
            shape = make(warps=2, chunk=256) if other else None
            wrong += differences(ids, *given_of(kind, unary, pair), nodes, seed, variant, shape)
            count += 1
    for ids, scores, nodes, seed in odd_scores(plan.device, plan.odd):
        if nodes > plan.most:
            continue
        wrong += differences(ids, None, scores, nodes, seed, variant)
        count += 1
    ids, _, pair = lattice(2, 5, 7, 1, False, plan.device)
    for scores, shape in ((pair, make(listed=32)), (torch.zeros_like(pair), None)):
        wrong += differences(ids, None, scores, 33, 1, variant, shape)
        count += 1
    return count, wrong


def main(name: str) -> int:
    """Everything of a plan."""
    plan = PLANS[name]
    wrong: list[str] = []
    count = 0
    for seed, (shape, nodes, kinds) in enumerate(plan.sizes):
        for kind, ties in itertools.product(kinds, (False, True)):
            ids, unary, pair = lattice(*shape, seed, ties, plan.device)
            for variant in ("triton", "triton-select"):
                wrong += differences(ids, *given_of(kind, unary, pair), nodes, seed, variant)
                count += 1
    more = [select_cases(plan)]
    if plan.device == "cuda" and threshold.fits(ids, None):
        more.append(threshold_cases())
    count += sum(cases for cases, _ in more)
    wrong += [line for _, found in more for line in found]
    for line in wrong[:20]:
        print("WRONG", line)
    print(f"{count} lattices, {len(wrong)} wrong")
    return bool(wrong)


if __name__ == "__main__":
    from specpilot_kernels._testing.words import word

    sys.exit(main(word(__doc__, tuple(PLANS))))
