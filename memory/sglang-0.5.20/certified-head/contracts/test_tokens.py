"""The tree's own copy gives the head's own tokens, as far as torch alone can show it; the engine is not imported."""

import importlib
import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

import torch

TREE = Path.cwd()


def room(name: str) -> None:
    """A package of the tree without its `__init__.py`, which would import the whole engine."""
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(TREE.joinpath(*name.split(".")))]
    sys.modules[name] = module_from_spec(spec)


PARTS = ("sglang", "srt", "layers", "certified_head")
for end in range(1, len(PARTS) + 1):
    room(".".join(PARTS[:end]))
layout = importlib.import_module("sglang.srt.layers.certified_head.layout")
plan = importlib.import_module("sglang.srt.layers.certified_head.plan")
prepare = importlib.import_module("sglang.srt.layers.certified_head.prepare")
torch_path = importlib.import_module("sglang.srt.layers.certified_head.torch_path")


def head_with_ties(tokens: int, columns: int, seed: int) -> torch.Tensor:
    """Gaussian rows, a fifth of them copies of others, a tenth different from another by one last bit."""
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(tokens, columns, generator=generator) * 0.02).bfloat16()
    other = torch.randint(0, tokens, (tokens,), generator=generator)
    draw = torch.rand(tokens, generator=generator)
    weight[draw < 0.2] = weight[other[draw < 0.2]]
    close = (draw >= 0.2) & (draw < 0.3)
    near = weight[other[close]].view(torch.int16)
    near[:, seed % columns] ^= 1
    weight[close] = near.view(torch.bfloat16)
    return weight


def test_tokens_are_those_of_every_score() -> None:
    dropped = 0
    for seed in range(12):
        weight = head_with_ties(500 + seed, 64 + 8 * seed, seed)
        x = torch.randn(6, weight.shape[1], generator=torch.Generator().manual_seed(seed)).bfloat16()
        x[:3] = weight[torch.arange(3) * 7] * 50
        head = prepare.prepare(weight, tiles=True)
        every = torch.stack([(weight.float() * row.float()).sum(1).bfloat16().float() for row in x])
        values, tokens = torch_path.topk(x, head, 4)
        expected, order = torch.sort(every, dim=1, descending=True, stable=True)
        assert torch.equal(tokens, order[:, :4]) and torch.equal(values, expected[:, :4])
        dropped += int((~torch_path.survivors(x, head)).sum())
    assert dropped > 20_000  # the bound is of use: most tokens are never rescored


def test_the_tiles_are_the_copy() -> None:
    rows = torch.randint(-127, 128, (200, 300), dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    tiles = layout.tile(rows)
    assert tiles.shape == (4, 3, 64, 128)
    assert torch.equal(layout.untile(tiles, 300)[:200], rows)


def test_scratch_memory_holds_every_buffer() -> None:
    for m, columns in ((1, 8), (5, 16), (32, 64), (64, 128)):
        sizes = plan.Sizes(m, 5120, 151936, 132, columns, plan.CAPACITY)
        needed = {"digits": 40 * columns * 128, "row": 6 * columns, "best": 4 * columns, "key": 4 * columns}
        needed |= {"done": 2 * columns, "counts": 4 * 132 * m, "entries": 8 * 132 * m * plan.CAPACITY}
        starts = sorted((start, name) for name, start in sizes.offsets.items())
        ends = [*(start for start, _ in starts[1:]), sizes.scratch_bytes]
        assert all(end - start >= needed[name] for (start, name), end in zip(starts, ends, strict=True))
        assert len(starts) == len(needed) and sizes.scratch_bytes < 40e6
