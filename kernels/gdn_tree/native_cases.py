"""The `cuda` variant against float64 within the bound of `cases.py`, on a GPU or on a CPU (`emulate.hpp`).

python native_cases.py cpu
python native_cases.py cuda       # also bit for bit against the `path` variant's commit
python native_cases.py cuda few   # small enough for compute-sanitizer
"""

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import torch
from specpilot_kernels.gdn_tree import cases, native, op, reference
from specpilot_kernels.gdn_tree.reference import Inputs

Size = tuple[int, int, tuple[int, int], tuple[int, int]]
ALIGNED, ODD = 8, 7
"""Elements behind the last value of a row: rows that start at multiples of 16 bytes, and rows that do not.

Neither starts rows at multiples of 16 elements, on which Triton's order of sums depends (`as_in_the_engine`)."""
EVERY = list(itertools.product(cases.TREES, cases.VALUES))
SMALL: list[Size] = [(2, 9, (1, 2), (32, 32)), (1, 17, (2, 2), (16, 32)), (1, 21, (1, 3), (64, 16))]
ENGINE: list[Size] = [(1, 32, (16, 48), (128, 128)), (3, 64, (4, 8), (128, 128)), (2, 48, (2, 4), (128, 64))]
ROWS = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64)


def plan(device: str) -> Iterator[tuple[Size, str, str]]:
    """Sizes with trees and values: every pair on a small one, every number of rows, and the engine's sizes."""
    yield from ((SMALL[0], *pair) for pair in EVERY)
    for size in SMALL[1:] if device == "cpu" else []:
        yield from ((size, *pair) for pair in EVERY[::3])
    for number, rows in enumerate(ROWS):
        yield ((2, rows, (1, 2 + number % 2), (128, 32)), *EVERY[number * 7 % len(EVERY)])
    if device == "cpu":
        yield ((1, 20, (2, 2), (128, 128)), "random", "plain")
        return
    yield from ((ENGINE[0], *pair) for pair in EVERY)
    yield from ((size, *pair) for size in ENGINE[1:] for pair in EVERY[::2])


@dataclass(frozen=True)
class Step:
    """Layers of one step: they share slots and tree. x and state `[L, ...]`; each case holds views of its layer."""

    x: Inputs
    state: torch.Tensor
    layers: list[cases.Case]


def step_of(size: Size, tree: str, values: str, seed: int, device: str, layers: int) -> Step:
    """Drawn as `cases.draw` does, in BF16."""
    drawn = [cases.draw(tree, values, *size, seed=seed * 100 + layer, device=device) for layer in range(layers)]
    x = laid_out([case.x for case in drawn], ODD if seed % 2 else ALIGNED)
    state = torch.stack([case.state for case in drawn])
    slots, parents = drawn[0].slots, drawn[0].parents
    views = [replace(c, x=x.layer(i), state=state[i], slots=slots, parents=parents) for i, c in enumerate(drawn)]
    return Step(x, state, views)


def laid_out(layers: list[Inputs], pad: int) -> Inputs:
    """All layers as BF16 views of wide rows, `pad` elements of NaN behind each."""
    parts = [torch.stack([getattr(x, name).flatten(2) for x in layers]) for name in ("q", "k", "v")]
    widths = [part.shape[-1] for part in parts]
    rows = torch.cat([*parts, parts[0].new_full((*parts[0].shape[:3], pad), float("nan"))], -1).bfloat16()
    views = torch.split(rows, [*widths, pad], -1)[:3]
    heads = [getattr(layers[0], name).shape[2:] for name in ("q", "k", "v")]
    q, k, v = (torch.unflatten(view, -1, shape) for view, shape in zip(views, heads, strict=True))
    a, b, dt_bias = (torch.stack([getattr(x, name) for x in layers]).bfloat16() for name in ("a", "b", "dt_bias"))
    return Inputs(q, k, v, a, b, torch.stack([x.a_log.float() for x in layers]), dt_bias)


def shapes_of(case: cases.Case) -> list[int | None]:
    """The kernel of `verify.cuh`, and those of `native.SHAPES` that take the case's heads."""
    values_a_key = case.x.v.shape[2] // case.x.k.shape[2]
    return [None, *(shape for shape, heads in native.SHAPES.items() if values_a_key % heads == 0)]


def verify_shares(case: cases.Case, shapes: Iterable[int | None]) -> dict[str, float]:
    """Of the bound, of kernels as `shapes_of` names them.

    Infinite where a second run into poisoned memory gives other bits, or the state changed.
    """
    tree, kept, found = op.ancestors(case.parents), case.state.clone(), {}
    exact = reference.verify(case.x.to(torch.float64), case.before, case.parents, case.scale)
    bound = cases.error_bound(case)
    for shape in shapes:
        runs = []
        for early in (False, True):
            out = torch.full(case.x.v.shape, float("nan"), dtype=torch.bfloat16, device=case.state.device)
            given = (case.x, case.state, case.slots, tree, case.scale)
            runs.append(native.verify(*given, out=out, shape=shape, early=early))
        same = torch.equal(runs[0].view(torch.int16), runs[1].view(torch.int16)) and torch.equal(kept, case.state)
        name = native.name_of(shape)
        found[name] = cases.worst(runs[0], exact, bound) if same else float("inf")
    return found


def as_in_the_engine(x: Inputs) -> Inputs:
    """Rows at multiples of 16 elements. Only then Triton knows that four neighbours of a key can be loaded at once, and
    sums their squares first; `path` and the engine's kernel are compiled anew for other rows, with another order."""
    return replace(x, q=x.q.contiguous(), k=x.k.contiguous(), v=x.v.contiguous())


def commit_shares(step: Step, seed: int) -> dict[str, float]:
    """Of the bound, all layers in one launch; on a GPU also whether all bits are those of `path` (0 or infinite)."""
    layers, slots = step.layers, step.layers[0].slots
    path, length = cases.drawn_path(layers[0], seed)
    state, plain = step.state.clone(), step.state.clone()
    native.commit_layers(step.x, state, slots, path, length)
    native.commit_layers(step.x, plain, slots, path, length, ahead=False)
    share = max(cases.commit_share(case, path, length, own) for case, own in zip(layers, state, strict=True))
    found = {"commit": share if torch.equal(state, plain) else float("inf")}
    if state.is_cuda and step.x.k.shape[-1] == 128:
        for case, own in zip(layers, state, strict=True):
            walked = case.state.clone()
            op.commit(as_in_the_engine(case.x), walked, case.slots, path, length, "path")
            found["commit bits"] = max(found.get("commit bits", 0.0), 0.0 if torch.equal(walked, own) else float("inf"))
    return found


def shares(device: str, wanted: Iterable[tuple[Size, str, str]], more: bool) -> Iterator[tuple[str, float, str]]:
    """What was compared, its share, and the case. more: the kernels of `native.SHAPES` too."""
    for number, (size, tree, values) in enumerate(wanted):
        step = step_of(size, tree, values, number, device, 2)
        name, case = f"{tree} {values} {size}", step.layers[1]
        shapes = shapes_of(case) if more else [None]
        for what, share in {**verify_shares(case, shapes), **commit_shares(step, number)}.items():
            yield what, share, name


def few_of(device: str) -> list[tuple[Size, str, str]]:
    """Every fifth small case and, on a GPU, the engine's size once well and once badly conditioned."""
    found = list(itertools.islice(plan(device), 0, 38, 5))
    return found + ([(ENGINE[0], "random", "plain"), (ENGINE[0], "chain", "same-keys")] if device == "cuda" else [])


def main(device: str, few: bool = False, more: bool = True) -> int:
    """Print how much of the bound is used, and what is wrong. Nonzero where anything is."""
    largest: dict[str, float] = {}
    wrong, count = [], 0
    wanted = few_of(device) if few else plan(device)
    for what, share, name in shares(device, wanted, more):
        count += 1
        largest[what] = max(share, largest.get(what, 0.0))
        if not share <= 1:
            wrong.append(f"{what}: {share:.3g} of what is allowed, {name}")
    used = {what: f"{share:.3f}" for what, share in largest.items()}
    print(f"{count} comparisons of the cuda variant, {len(wrong)} wrong; largest share of the bound:", used)
    print("\n".join(wrong[:20]))
    return bool(wrong)


if __name__ == "__main__":
    from specpilot_kernels._testing.words import parser_of

    parser = parser_of(__doc__, ("cpu", "cuda"))
    parser.add_argument("some", nargs="?", choices=("few",), help="every fifth small case")
    options = parser.parse_args()
    raise SystemExit(main(options.plan, few=options.some == "few"))
