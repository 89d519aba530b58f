"""Drawn texts and trees through the kernels and the reference: `python cases.py few|cpu|cuda`.

"few" and "cpu" run in Triton's interpreter (`TRITON_INTERPRET=1`), seconds and minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import torch
from specpilot_kernels.ngram_graft import graft, record, reference
from specpilot_kernels.ngram_graft.reference import EMPTY, ROOT, Node

POISON = -77
FIELDS = ("parents", "tokens", "depths", "scores")
TEXTS = ("repeating", "drawn", "new")
AGREEMENTS = ((0.0, 0.0), (0.3, 0.3), (0.5, 0.0), (0.0, 0.5), (1.0, 0.5), (0.0, 1.0))
Size = tuple[int, int, int]
"""Requests, nodes, length."""
Graft = Callable[..., None]


@dataclass
class Tree:
    """What `graft` reads and writes of a `best_first_select.op.Tree`."""

    parents: torch.Tensor
    tokens: torch.Tensor
    depths: torch.Tensor
    scores: torch.Tensor
    next_token: torch.Tensor
    next_sibling: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def of(cls, trees: list[list[Node]], most: int) -> Tree:
        """Trees as selection leaves them."""
        rows = []
        for nodes in trees:
            filled = nodes + [Node(EMPTY, 0, 0, 0.0)] * (most - len(nodes))
            numbers = torch.tensor([node[:3] for node in filled], dtype=torch.int32).T
            links = reference.links([node.parent for node in nodes], most)
            scores = torch.tensor([node.score for node in filled], dtype=torch.float32)
            whole = (links["next_token"].int(), links["next_sibling"].int(), links["mask"])
            rows.append((*numbers, scores, *whole))
        return cls(*(torch.stack(parts) for parts in zip(*rows, strict=True)))

    def to(self, device: str) -> Tree:
        """A copy."""
        return Tree(*(value.clone().to(device) for value in vars(self).values()))


@dataclass(frozen=True)
class Case:
    """One call of `graft`; chains: for each request, the chain that its text gives."""

    tree: Tree
    history: torch.Tensor
    slots: torch.Tensor
    prefix_lens: torch.Tensor
    anchors: torch.Tensor
    length: int
    chains: list[list[int]]

    def texts(self, device: str) -> tuple[torch.Tensor, ...]:
        """The arguments between tree and length."""
        return tuple(value.to(device) for value in (self.history, self.slots, self.prefix_lens, self.anchors))


def random_tree(
    draw: torch.Generator, chain: list[int], nodes: int, levels: int, agreement: tuple[float, float]
) -> list[Node]:
    """Up to `nodes` nodes, no twins, many of them below the one in front of them.

    agreement: how often a node continues the chain's path, in the first half of the tree and in the second.
    """
    tree: list[Node] = []
    taken: set[tuple[int, int]] = set()
    on_path = {ROOT: 0}  # nodes that are the chain's, and their depths
    for _ in range(4 * nodes):
        if len(tree) == nodes:
            break
        follows = float(torch.rand((), generator=draw)) < agreement[2 * len(tree) >= nodes]
        at = int(torch.randint(-1, len(tree), (), generator=draw))
        if follows:
            at = max(on_path)
        elif float(torch.rand((), generator=draw)) < 0.5:
            at = len(tree) - 1
        depth = 0 if at == ROOT else tree[at].depth
        token = int(torch.randint(0, 9, (), generator=draw))
        wanted = chain[depth] if at in on_path and depth < len(chain) else -1
        if follows and wanted >= 0:
            token = wanted
        if depth == levels or (at, token) in taken:
            continue
        if token == wanted:
            on_path[len(tree)] = depth + 1
        taken.add((at, token))
        tree.append(Node(at, token, depth + 1, -float(torch.rand((), generator=draw))))
    return tree


def random_text(draw: torch.Generator, kind: str, size: int) -> list[int]:
    """Text and anchor: of very few tokens, of more, or of no token twice."""
    if kind == "new":
        return (100 + torch.randperm(size, generator=draw)).tolist()
    return torch.randint(0, 2 if kind == "repeating" else 6, (size,), generator=draw).tolist()


def draw_case(size: Size, width: int, seed: int, spare: int = 3) -> Case:
    """A batch of all kinds: texts of 0 to L tokens, one that fills its row, one padded, one that ends behind L, trees
    that agree with the chain wholly, partly and not at all, and short ones."""
    batch, nodes, length = size
    draw = torch.Generator().manual_seed(seed)
    history = torch.full((batch + spare, width), POISON, dtype=torch.int32)
    slots = torch.randperm(batch + spare, generator=draw)[:batch]
    prefix_lens = torch.randint(0, width + 1, (batch,), generator=draw)
    prefix_lens[0] = width
    if batch > 2:
        prefix_lens[1], prefix_lens[2] = int(torch.randint(0, 4, (), generator=draw)), width + 5
    anchors = torch.empty(batch, dtype=torch.int64)
    trees, chains = [], []
    for b in range(batch):
        end = min(int(prefix_lens[b]), width)
        kind = "new" if b % 7 == 5 else TEXTS[b % 2]
        text = random_text(draw, kind, end + 1)
        # behind the text: the anchor, as `record` leaves it, and the text's end over and over, or poison
        row = text + text[-4:] * width if b % 3 else text[:end] + [POISON] * width
        history[slots[b]] = torch.tensor(row[:width], dtype=torch.int32)
        anchors[b] = text[-1]
        chain = reference.chain(history[slots[b], :end], text[-1], length)
        chains.append(chain)
        levels = int(torch.randint(1, max(2, length + 4), (), generator=draw))
        short = int(torch.randint(0, nodes + 1, (), generator=draw))
        count = (nodes, nodes, short, max(nodes - length // 2, short))[int(torch.randint(0, 4, (), generator=draw))]
        longer = reference.chain(history[slots[b], :end], text[-1], length + 4)  # trees may go on where the chain ends
        trees.append(random_tree(draw, longer, count, levels, AGREEMENTS[(seed + b) % len(AGREEMENTS)]))
    return Case(Tree.of(trees, nodes), history, slots, prefix_lens, anchors, length, chains)


def differences(case: Case, device: str, made_by: Graft) -> list[str]:
    """Outputs that are not the reference's, and inputs that are no longer what they were."""
    expected, made = case.tree.to("cpu"), case.tree.to(device)
    reference.graft(expected, *case.texts("cpu"), case.length)
    texts = case.texts(device)
    made_by(made, *texts, case.length)
    wrong = [name for name, value in vars(expected).items() if not torch.equal(getattr(made, name).cpu(), value)]
    kept = zip(("history", "slots", "prefix_lens", "anchors"), texts, case.texts("cpu"), strict=True)
    return wrong + [name for name, now, before in kept if not torch.equal(now.cpu(), before)]


def poisoned_links(case: Case) -> Case:
    """The same with wrong links wherever a chain is grafted: all of them have to be written.

    The mask's lines of the nodes that stay in place are not: they are right already.
    """
    for b, chain in enumerate(case.chains):
        if chain:
            nodes = int((case.tree.parents[b] != EMPTY).sum())
            stays = min(nodes, case.tree.parents.shape[1] - case.length)
            case.tree.next_token[b], case.tree.next_sibling[b] = POISON, POISON
            case.tree.mask[b, stays + 1 :] = True
    return case


def record_differences(seed: int, device: str, made_by: Graft) -> list[str]:
    """The same for `record`: requests at both ends of their rows, and rows further apart than they are long."""
    draw = torch.Generator().manual_seed(seed)
    batch, most, width = 1 + seed % 9, 1 + seed % 6, 12 + seed % 5
    buffer = torch.full((batch + 4, width + 4), POISON, dtype=torch.int32)
    slots = 1 + torch.randperm(batch + 2, generator=draw)[:batch]  # a kernel that writes too far still writes in here
    counts = torch.randint(1, most + 1, (batch,), generator=draw).int()
    new_lens = torch.randint(-2, width + most + 2, (batch,), generator=draw)
    anchors = torch.randint(0, 1 << 20, (batch,), generator=draw)
    given = (slots, new_lens, anchors, torch.randint(0, 1 << 20, (batch, most), generator=draw), counts)
    expected, made = buffer.clone(), buffer.clone().to(device)
    reference.record(expected[:, :width], *given)
    made_by(made[:, :width], *(value.to(device) for value in given))
    return [] if torch.equal(made.cpu(), expected) else [f"record, seed {seed}"]


FEW: list[Size] = [(12, 12, 5), (12, 9, 9), (12, 20, 6), (4, 32, 8), (2, 63, 15)]
MORE: list[Size] = [
    (1, 1, 1), (2, 3, 3), (9, 8, 8), (5, 15, 3), (24, 16, 4), (16, 31, 7), (64, 32, 8), (16, 33, 5), (9, 63, 63),
    (5, 64, 16), (3, 127, 31), (2, 192, 48), (2, 255, 63),
]  # fmt: skip


def plan(name: str) -> Iterator[tuple[str, Case, dict[str, int]]]:
    """Label, case, and other shapes of the program than the default."""
    sizes = {"few": FEW, "cpu": FEW + MORE, "cuda": FEW + MORE[::2]}[name]  # there each size and shape is compiled
    for number, size in enumerate(sizes):
        for seed in range(3 if name == "few" or size[1] > 64 else 8):
            shape = ({"block": 16, "stripes": 3, "rows": 4}, {}, {"block": 16, "stripes": 1})[seed % 3]
            width = (150, 40, 60)[seed % 3]
            yield f"{size} seed {seed} {shape}", draw_case(size, width, 100 * number + seed), shape


def wrong_of(
    name: str, made_by: Graft = graft.launch, recorded_by: Graft = record.launch
) -> Iterator[tuple[Case, list[str]]]:
    """Each case of a plan with its differences; the last case once more for those of `record`."""
    device = "cuda" if name == "cuda" else "cpu"
    for label, case, shape in plan(name):
        found: list[str] = []
        for given in (case, poisoned_links(case)):
            found += differences(given, device, partial(made_by, **shape))
        yield case, [f"{part} of {label}" for part in found]
    for seed in range(10 if name == "few" else 60):
        yield None, record_differences(seed, device, recorded_by)


def main(name: str) -> int:
    """Everything of a plan."""
    wrong: list[str] = []
    count = grafts = 0
    for case, found in wrong_of(name):
        wrong += found
        count += len(case.chains) if case else 0
        grafts += sum(map(bool, case.chains)) if case else 0
    if name == "cuda":
        wrong += replayed()
    for line in wrong[:20]:
        print("WRONG", line)
    print(f"{count} trees, {grafts} with a chain, {len(wrong)} wrong")
    return bool(wrong)


def replayed() -> list[str]:
    """Both ops in one CUDA graph, replayed on texts and trees that were not there when it was captured."""
    size, width = (8, 32, 8), 5000
    first = draw_case(size, width, 0)
    tree, texts = first.tree.to("cuda"), first.texts("cuda")
    tokens = torch.arange(8 * 5, device="cuda").view(8, 5)
    counts = torch.full((8,), 5, dtype=torch.int32, device="cuda")

    def both() -> None:
        graft.graft(tree, *texts, size[2])
        record.record(texts[0], texts[1], texts[2], texts[3], tokens, counts)

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    wrong = []
    for seed in range(1, 6):
        case = draw_case(size, width, seed)
        for name, value in vars(case.tree).items():
            getattr(tree, name).copy_(value)
        for mine, value in zip(texts, case.texts("cpu"), strict=True):
            mine.copy_(value)
        graph.replay()
        expected, plain = case.tree.to("cpu"), case.texts("cpu")
        reference.graft(expected, *plain, size[2])
        history = plain[0].clone()
        reference.record(history, *plain[1:], tokens.cpu(), counts.cpu())
        wrong += [name for name, value in vars(expected).items() if not torch.equal(getattr(tree, name).cpu(), value)]
        wrong += [] if torch.equal(texts[0].cpu(), history) else ["history"]
    return [f"{name} of a replayed graph" for name in wrong]


if __name__ == "__main__":
    from specpilot_kernels._testing.words import word

    sys.exit(main(word(__doc__, ("few", "cpu", "cuda"))))
