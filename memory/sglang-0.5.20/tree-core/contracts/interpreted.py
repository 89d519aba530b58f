"""The Triton kernels of the draft tree in Triton's interpreter: `python interpreted.py` in the tree.

Prints what held. Only run with TRITON_INTERPRET=1. Integers and float32 alone: the interpreter is wrong in bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tree_modules import tree_modules

SLACK_NATS = 2e-5
"""A sum's relative error is the error of its logarithm: two roundings of (score - maximum) for scores within 64 of it
(64 x 2**-23), exp's own two units in the last place, and at most 24 additions one behind the other (26 x 2**-24)."""
EACH_NATS = 64 * 2**-24
"""Half a unit in the last place of a score below 64, for each of base plus bias and the difference."""


def accepted(modules: Any) -> None:
    """`_accept` against the plain definition, chosen so that some paths are long and some slots empty."""
    generator = torch.Generator().manual_seed(1)
    lengths = set()
    for nodes in (1, 5, 32, 63):
        batch, depth, vocab = 4, 6, 3
        parents = torch.full((batch, nodes), -2, dtype=torch.int32)
        for node in range(nodes if nodes < 32 else nodes - 3):
            parents[:, node] = torch.randint(-1, max(node, 1), (batch,), generator=generator) if node else -1
        tokens = torch.randint(0, vocab, (batch, nodes), generator=generator, dtype=torch.int32)
        predict = torch.randint(0, vocab, (batch, nodes + 1), generator=generator)
        slots = torch.randperm(batch * (nodes + 1), generator=generator).view(batch, nodes + 1)
        prefix = torch.randint(1, 99, (batch,), generator=generator)
        wanted = modules.accept._plainly(parents, tokens, predict, slots, prefix, depth)
        wide, single = torch.full((3, batch, depth + 1), -7), torch.full((2, batch), -7)
        indices = torch.full((batch, depth + 1), -7, dtype=torch.int32)
        commit = torch.full((batch,), -7, dtype=torch.int32)
        power = triton.next_power_of_2(nodes + 1)
        modules.accept._accept[(batch,)](
            parents, tokens, predict, slots, prefix, wide[0], wide[1], wide[2], indices, single[0], single[1], commit,
            N=nodes, P=depth + 1, POWER=power,
        )  # fmt: skip
        assert torch.equal(indices, wanted.indices) and torch.equal(commit, wanted.commit_lens)
        assert torch.equal(single[0], wanted.bonus) and torch.equal(single[1], wanted.new_seq_lens)
        live = torch.arange(depth + 1) < commit.view(-1, 1)
        for mine, theirs in ((wide[0], wanted.tokens), (wide[1], wanted.rows), (wide[2], wanted.source)):
            assert torch.equal(mine[live], theirs[live])
        lengths |= set(commit.tolist())
    assert len(lengths) >= 3, lengths
    print("accept")


def written(modules: Any) -> None:
    """`_rows` against the plain definition: input ids, positions, and in the mask the trees' cells alone."""
    generator = torch.Generator().manual_seed(3)
    for nodes, batch in ((1, 1), (7, 5), (32, 3)):
        rows, block = nodes + 1, 4
        seen = torch.rand(batch, rows, rows, generator=generator) < 0.5
        tokens, depths = (torch.randint(1, 9, (batch, nodes), generator=generator, dtype=torch.int32) for _ in range(2))
        tree = SimpleNamespace(tokens=tokens, depths=depths, mask=seen)
        ids = torch.randint(0, 50, (batch, block), generator=generator)
        prefix = torch.randint(1, 30, (batch,), generator=generator)
        size = modules.arrays.full_mask_size(int(prefix.sum()), batch, rows)
        mine, theirs = (
            [
                torch.full((batch, rows), -7),
                torch.full((batch, rows), -7),
                torch.full((size + 9,), 7, dtype=torch.uint8),
            ]
            for _ in range(2)
        )
        modules.rows.write_rows(tree, ids, prefix, *theirs)
        modules.rows._rows[(batch, triton.cdiv(rows, modules.rows.ROWS))](
            tokens, depths, seen.view(torch.uint8), ids, prefix, *mine, BLOCK=block, N=nodes,
            BATCH=triton.next_power_of_2(batch), COLUMNS=triton.next_power_of_2(rows), ROWS=modules.rows.ROWS,
        )  # fmt: skip
        assert all(torch.equal(one, two) for one, two in zip(mine, theirs, strict=True))
        assert bool((mine[2] == 7).any()) and bool((mine[2] == 1).any())
    print("rows")


def moved(modules: Any) -> None:
    """`_move`, where a row's old place is another's new one."""
    buffers = [torch.randn(64, width) for width in (24, 24, 40)]
    before = [buffer.clone() for buffer in buffers]
    pointers = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64)
    strides = torch.tensor([buffer.shape[1] * 4 for buffer in buffers])
    target = torch.arange(32).view(2, 16) + 5
    rows = torch.tensor([[0, 2, 3, 4, 9], [0, 1, 5, 0, 0]])
    counts = torch.tensor([5, 3], dtype=torch.int32)
    modules.compaction._move[(3, 2, 2)](
        pointers, strides, target.gather(1, rows), target, counts, WIDTH=5, ROOM=16, POWER=8, TILE=16
    )
    for old, new in zip(before, buffers, strict=True):
        wanted = old.clone()
        for request, count in enumerate(counts.tolist()):
            wanted[target[request, :count]] = old[target[request, rows[request, :count]]]
        assert torch.equal(wanted, new) and not torch.equal(old, new)
    print("move")


def summed(modules: Any) -> None:
    """`_part` and `_pairs` over a vocabulary that is no multiple of anything, words that cannot be among them."""
    scores = modules.pair_scores
    generator = torch.Generator().manual_seed(2)
    for requests, depth, width, vocab in ((2, 3, 3, scores.PART + 1237), (3, 1, 2, 700), (1, 4, 5, 900)):
        base = torch.randn(requests, depth, vocab, generator=generator) * 8
        bias = torch.randn(requests, depth - 1, width, vocab, generator=generator) * 4
        base[0, :, ::2] = float("-inf")
        ids = base.topk(width, -1).indices.int()
        rows, parts = requests * (1 + (depth - 1) * width), triton.cdiv(vocab, scores.PART)
        tops, sums = torch.empty(2, rows, parts)
        mine = torch.full((requests, depth, width, width), 7.0)
        scores._part[(rows, parts)](
            base, bias, tops, sums, vocab, D=depth, K=width, PART=scores.PART, BLOCK=scores.BLOCK
        )
        scores._pairs[(requests, depth)](
            base, bias, ids, tops, sums, mine, vocab, parts, D=depth, K=width,
            WIDTH=triton.next_power_of_2(width), PARTS=triton.next_power_of_2(parts),
        )  # fmt: skip
        none = torch.zeros(requests, 1, width, vocab)
        exact = base.double().unsqueeze(2) + torch.cat([none, bias], 1).double()
        wanted = exact.gather(-1, ids.long().unsqueeze(2).expand(-1, -1, width, -1)) - exact.logsumexp(-1, keepdim=True)
        assert (mine - wanted).abs().max() < SLACK_NATS + 2 * EACH_NATS, (mine - wanted).abs().max()
        assert (scores.pair_scores(base, bias, ids) - wanted).abs().max() < SLACK_NATS + 2 * EACH_NATS
    print("sum")


def beamed(modules: Any) -> None:
    """`_beam` and `link` behind it against the plain definition: ties, empty slots, any number of candidates."""
    generator = torch.Generator().manual_seed(4)
    cases = [(7, 16, 32, 4, False), (3, 5, 9, 2, True), (1, 3, 8, 4, True)]
    cases += [(9, 16, 63, 8, False), (4, 4, 20, 1, True), (5, 6, 24, 16, True)]
    for depth, count, nodes, beam, ties in cases:
        pair = (torch.randn(3, depth, count, count, generator=generator) * 3).log_softmax(-1)
        pair = (pair.round() if ties else pair).contiguous()
        ids = torch.randint(0, 1000, (3, depth, count), generator=generator, dtype=torch.int32)
        out = modules.op.Tree.empty(3, nodes, torch.device("cpu"))
        modules.beam.select(ids, pair, nodes, beam, out)
        for i, tree in enumerate(modules.beam.plainly(pair, nodes, beam)):
            for name, wanted in modules.reference.arrays(tree, ids[i], nodes).items():
                assert torch.equal(getattr(out, name)[i].long(), wanted.long()), (depth, count, nodes, beam, name)
    print("beam")


if __name__ == "__main__":
    found = tree_modules(Path.cwd())
    written(found)
    accepted(found)
    moved(found)
    summed(found)
    beamed(found)
