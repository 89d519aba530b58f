"""Draft trees against their definition, on random trees: rows, mask, links, acceptance, moves. Plain torch on a CPU."""

from __future__ import annotations

import itertools
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tree_modules import tree_modules

BATCH, DEPTH, CANDIDATES, VOCAB = 5, 6, 4, 12
NODES = (1, 7, 16, 33)


@pytest.fixture(scope="module")
def modules() -> Any:
    return tree_modules(Path.cwd())


def lattice(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Distinct candidates of every position and normalised scores given the parent."""
    order = torch.rand(BATCH, DEPTH, VOCAB, generator=generator).argsort(-1)[..., :CANDIDATES]
    scores = torch.randn(BATCH, DEPTH, CANDIDATES, CANDIDATES, generator=generator)
    scores[:, 0] = scores[:, 0, :1]
    return order.int().contiguous(), scores.log_softmax(-1).contiguous()


def drawn(modules: Any, nodes: int, seed: int) -> SimpleNamespace:
    """Arrays of a made-up draft pass, and the lattice that they are from."""
    generator = torch.Generator().manual_seed(seed)
    ids, pair = lattice(generator)
    prefix = torch.randint(1, 40, (BATCH,), generator=generator)
    anchors = torch.randint(0, VOCAB, (BATCH,), generator=generator)
    block = torch.cat([anchors.view(-1, 1), torch.zeros(BATCH, DEPTH, dtype=torch.int64)], 1).reshape(-1)
    size = modules.arrays.full_mask_size(int(prefix.sum()), BATCH, nodes + 1)
    asked = []

    def lattice_of(hidden: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor]:
        asked.append(given.tolist())
        return ids, None, pair

    sampler = modules.sampler.TreeSampler(
        lattice_of,
        lambda count: torch.full((size,), 7, dtype=torch.uint8),
        rows_per_request=DEPTH + 1,
        nodes=nodes,
        max_batch=BATCH + 2,
        device="cpu",
    )
    made = sampler(torch.zeros(1), block, prefix)
    assert asked == [anchors.tolist()] and not sampler.captured
    return SimpleNamespace(made=made, ids=ids, prefix=prefix, anchors=anchors, block=block, sampler=sampler)


def parent_rows(made: Any, request: int) -> list[int]:
    """Row of every node's parent; None for an empty slot."""
    return [p + 1 if p >= -1 else None for p in made.tree.parents[request].tolist()]


def ancestors(parents: list[int], row: int) -> list[int]:
    """Rows from this one up to the anchor."""
    found = [row]
    while row > 0 and parents[row - 1] is not None:
        row = parents[row - 1]
        found.append(row)
    return found


@pytest.mark.parametrize("nodes", NODES)
def test_rows_are_the_anchor_and_the_tree(modules: Any, nodes: int) -> None:
    found = drawn(modules, nodes, nodes)
    for b in range(BATCH):
        parents = parent_rows(found.made, b)
        assert found.made.tokens[b, 0] == found.anchors[b] and found.made.positions[b, 0] == found.prefix[b]
        paths = set()
        for row in range(1, nodes + 1):
            chain = ancestors(parents, row)[::-1]
            assert chain[0] == 0, "every node hangs on the anchor"
            depth = len(chain) - 1
            assert found.made.positions[b, row] == found.prefix[b] + depth
            assert found.made.tokens[b, row] in found.ids[b, depth - 1].tolist()
            paths.add(tuple(found.made.tokens[b, chain].tolist()))
        assert len(paths) == nodes, "no path twice, so a node's children have different tokens"


@pytest.mark.parametrize("nodes", NODES)
def test_the_mask_lets_a_row_see_its_ancestors(modules: Any, nodes: int) -> None:
    found, rows = drawn(modules, nodes, 10 + nodes), nodes + 1
    flat = found.made.mask
    at = 0
    for b, prefix in enumerate(found.prefix.tolist()):
        whole = flat[at : at + rows * (prefix + rows)].view(rows, prefix + rows)
        at += whole.numel()
        assert bool((whole[:, :prefix] == 7).all()), "the prefix is not touched"
        for row in range(rows):
            seen = set(whole[row, prefix:].nonzero().view(-1).tolist())
            assert seen == set(ancestors(parent_rows(found.made, b), row))
    assert at == len(flat)


@pytest.mark.parametrize("nodes", NODES)
def test_links_are_eagles(modules: Any, nodes: int) -> None:
    found = drawn(modules, nodes, 20 + nodes)
    for b in range(BATCH):
        parents = parent_rows(found.made, b)
        for row in range(nodes + 1):
            children, child = [], int(found.made.tree.next_token[b, row])
            while child != -1:
                children.append(child)
                child = int(found.made.tree.next_sibling[b, child])
            assert children == [r + 1 for r, p in enumerate(parents) if p == row], "in ascending order"


def test_a_graphs_tail_leaves_the_same_arrays_in_one_place(modules: Any) -> None:
    found = drawn(modules, 16, 5)
    before = found.sampler.read(BATCH)
    batch = SimpleNamespace(input_ids=found.block, seq_lens=found.prefix)
    found.sampler.capture_hook(None, SimpleNamespace(hidden_states=torch.zeros(1)), batch, 0)
    after = found.sampler.read(BATCH)
    assert found.sampler.captured and after is before
    assert after.tokens.data_ptr() == found.sampler.read(BATCH + 1).tokens.data_ptr()
    for name in ("tokens", "positions", "mask"):
        assert torch.equal(getattr(after, name), getattr(found.made, name))
    for name in ("parents", "tokens", "depths", "next_token", "next_sibling", "mask"):
        assert torch.equal(getattr(after.tree, name), getattr(found.made.tree, name))


def eagle(made: Any, predict: torch.Tensor, b: int, depth: int) -> list[int]:
    """EAGLE's acceptance on its own arrays, as its kernel is documented: first child, then siblings."""
    path = [0]
    for _ in range(depth):
        row = int(made.tree.next_token[b, path[-1]])
        while row != -1 and made.tokens[b, row] != predict[b, path[-1]]:
            row = int(made.tree.next_sibling[b, row])
        if row == -1:
            break
        path.append(row)
    return path


def longest(made: Any, predict: torch.Tensor, b: int) -> list[int]:
    """By definition: the longest root path whose every node is what the target says behind its parent."""
    parents = parent_rows(made, b)
    best = [0]
    for row in range(1, len(parents) + 1):
        path = ancestors(parents, row)[::-1]
        right = all(made.tokens[b, k] == predict[b, p] for p, k in itertools.pairwise(path))
        if path[0] == 0 and right and len(path) > len(best):
            best = path
    return best


def target_tokens(made: Any, seed: int) -> torch.Tensor:
    """The target's tokens behind every row; mostly one of its children's, so that long paths are accepted."""
    generator = random.Random(seed)
    rows = made.tokens.shape[1]
    predict = torch.randint(0, VOCAB, (BATCH, rows), generator=torch.Generator().manual_seed(seed))
    for b in range(BATCH):
        parents = parent_rows(made, b)
        for row in range(rows):
            children = [r + 1 for r, p in enumerate(parents) if p == row]
            if children and generator.random() < 0.8:
                predict[b, row] = made.tokens[b, generator.choice(children)]
    return predict


@pytest.mark.parametrize("nodes", NODES)
def test_acceptance_is_the_longest_right_path(modules: Any, nodes: int) -> None:
    lengths = set()
    for seed in range(12):
        found = drawn(modules, nodes, 100 * nodes + seed)
        predict, rows = target_tokens(found.made, seed), nodes + 1
        slots = torch.randperm(BATCH * rows).view(BATCH, rows) + 1
        tree = found.made.tree
        done = modules.accept.accept(tree.parents, tree.tokens, predict, slots, found.prefix, DEPTH)
        for b in range(BATCH):
            path = longest(found.made, predict, b)
            assert path == eagle(found.made, predict, b, DEPTH)
            count = len(path)
            assert int(done.commit_lens[b]) == count and int(done.new_seq_lens[b]) == int(found.prefix[b]) + count
            text = [*found.made.tokens[b, path[1:]].tolist(), int(predict[b, path[-1]])]
            assert done.tokens[b, :count].tolist() == text and int(done.bonus[b]) == text[-1]
            assert done.rows[b, :count].tolist() == [b * rows + row for row in path]
            assert done.indices[b].tolist() == [b * rows + row for row in path] + [-1] * (DEPTH + 1 - count)
            assert done.source[b, :count].tolist() == slots[b, path].tolist()
            lengths.add(count)
    assert len(lengths) > 1


def test_an_empty_slot_is_never_accepted(modules: Any) -> None:
    tree = SimpleNamespace(parents=torch.tensor([[-1, -2, -2]]), tokens=torch.tensor([[5, 0, 0]]))
    predict = torch.tensor([[5, 0, 0, 0]])
    found = modules.arrays.walk(tree.parents, tree.tokens, predict, 3)
    assert found.path.tolist() == [[0, 1, 0, 0]] and found.correct.tolist() == [1]


@pytest.mark.parametrize("nodes", (16, 33))
def test_accepted_rows_move_to_the_front_and_nothing_else_moves(modules: Any, nodes: int) -> None:
    found = drawn(modules, nodes, 7)
    predict, rows = target_tokens(found.made, 3), nodes + 1
    slots = torch.arange(BATCH * rows).view(BATCH, rows) + 1
    tree = found.made.tree
    done = modules.accept.accept(tree.parents, tree.tokens, predict, slots, found.prefix, DEPTH)
    pool = SimpleNamespace(
        use_hnd=False,
        k_buffer=[torch.randn(BATCH * rows + 2, 2, 4) for _ in range(3)],
        v_buffer=[torch.randn(BATCH * rows + 2, 2, 4) for _ in range(3)],
        data_strides=torch.tensor([32] * 6),
    )
    before = [buffer.clone() for buffer in (*pool.k_buffer, *pool.v_buffer)]
    modules.compaction.PathMover(pool).move(done.source, slots, done.commit_lens)
    moved = 0
    for old, new in zip(before, (*pool.k_buffer, *pool.v_buffer), strict=True):
        wanted = old.clone()
        for b in range(BATCH):
            for step, row in enumerate(longest(found.made, predict, b)):
                wanted[slots[b, step]] = old[slots[b, row]]
                moved += row != step
        assert torch.equal(new, wanted)
    assert moved, "some path is no chain of the first rows"


def test_pools_that_it_cannot_move_are_refused(modules: Any) -> None:
    plain = {"k_buffer": [], "v_buffer": [], "data_strides": torch.tensor([32])}
    modules.compaction.PathMover(SimpleNamespace(use_hnd=False, **plain))
    for change in ({"use_hnd": True}, {"data_strides": torch.tensor([12])}):
        with pytest.raises(ValueError, match="speculative-tree-nodes"):
            modules.compaction.PathMover(SimpleNamespace(**{"use_hnd": False, **plain, **change}))


@pytest.mark.parametrize("nodes", NODES)
def test_a_text_in_steps_is_the_greedy_text(modules: Any, nodes: int) -> None:
    """A made-up target whose next token depends on the whole text; drafts that are often wrong."""

    def after(text: list[int]) -> int:
        return random.Random(str(text)).randrange(VOCAB)

    texts = [[b + 1] for b in range(BATCH)]
    for step in range(12):
        found = drawn(modules, nodes, 1000 + step)
        anchors = torch.tensor([text[-1] for text in texts])
        predict = torch.zeros(BATCH, nodes + 1, dtype=torch.int64)
        for b, text in enumerate(texts):
            for row in range(nodes + 1):
                chain = ancestors(parent_rows(found.made, b), row)[::-1]
                drafted = found.made.tokens[b, chain[1:]].tolist()
                predict[b, row] = after([*text, *drafted])
        tree, slots = found.made.tree, torch.zeros(BATCH, nodes + 1, dtype=torch.int64)
        done = modules.accept.accept(tree.parents, tree.tokens, predict, slots, anchors, DEPTH)
        for b, text in enumerate(texts):
            text += done.tokens[b, : int(done.commit_lens[b])].tolist()
    for b, text in enumerate(texts):
        greedy = [b + 1]
        while len(greedy) < len(text):
            greedy.append(after(greedy))
        assert text == greedy and len(text) > 12
