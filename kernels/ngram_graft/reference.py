"""The contract, plainly: what both ops do, request by request, in Python. On a CPU tensor this is what runs.

The chain: what followed the longest end of the text, MOST to LEAST tokens, that stands in it before, the latest time.
The graft: the tree's first N - m nodes, the chain's m nodes where the tree has not got them, then the tree's other
nodes, in order, while there is room. Trees are `best_first_select.op.Tree`s: nodes in order, parents before children,
no two children of one node with the same token, empty slots last.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

LEAST, MOST = 2, 6
"""Tokens that have to agree at least, the anchor the last of them; beyond MOST more do not count."""
EMPTY, ROOT, NONE = -2, -1, -1


class Node(NamedTuple):
    """parent: slot of the parent, or ROOT. depth: 1 for a child of the anchor."""

    parent: int
    token: int
    depth: int
    score: float


def record(
    history: torch.Tensor,
    slots: torch.Tensor,
    new_lens: torch.Tensor,
    anchors: torch.Tensor,
    tokens: torch.Tensor,
    counts: torch.Tensor,
) -> None:
    """As `record.record`."""
    for b, slot in enumerate(slots.tolist()):
        count = min(int(counts[b]), tokens.shape[1])
        begin = int(new_lens[b]) - int(counts[b])
        for place, token in enumerate([int(anchors[b]), *tokens[b, : max(count, 0)].tolist()], begin):
            if 0 <= place < history.shape[1]:
                history[slot, place] = token


def chain(before: torch.Tensor, anchor: int, length: int) -> list[int]:
    """The `length` tokens proposed behind the anchor; none where the last LEAST tokens were not seen before.

    before: `[t]` integers, the text in front of the anchor. Behind its end the chain goes on as a loop.
    """
    text = torch.cat([before.long(), before.new_tensor([anchor], dtype=torch.int64)])
    for gram in range(MOST, LEAST - 1, -1):
        at = latest(text, gram)
        if at is not None:
            period = text[at + 1 :].tolist()
            return [period[j % len(period)] for j in range(length)]
    return []


def latest(text: torch.Tensor, gram: int) -> int | None:
    """Where the last `gram` tokens end for the last time before the end."""
    end = len(text) - 1
    if end < gram:
        return None
    same = torch.ones(end - gram + 1, dtype=torch.bool)  # by the occurrence's last place, from gram - 1 to end - 1
    for back in range(gram):
        same &= text[gram - 1 - back : end - back] == text[end - back]
    places = same.nonzero().view(-1).tolist()
    return places[-1] + gram - 1 if places else None


def grafted(tree: list[Node], tokens: list[int], most: int) -> list[Node]:
    """The tree with the chain `tokens` in it, at most `most` nodes."""
    made = tree[: most - len(tokens)]
    slot = {(node.parent, node.token): index for index, node in enumerate(made)}
    at = ROOT
    for depth, token in enumerate(tokens, 1):
        if (at, token) not in slot:
            slot[at, token] = len(made)
            made.append(Node(at, token, depth, 0.0))
        at = slot[at, token]
    moved = {ROOT: ROOT}  # slot of the tree's own nodes in what is made
    for index, node in enumerate(tree):
        if node.parent not in moved:
            continue
        key = moved[node.parent], node.token
        if key not in slot:
            if len(made) == most:
                continue
            slot[key] = len(made)
            made.append(node._replace(parent=key[0]))
        moved[index] = slot[key]
    return made


def links(parents: list[int], most: int) -> dict[str, torch.Tensor]:
    """next_token, next_sibling `[most + 1]` and mask `[most + 1, most + 1]`: `best_first_select.reference.arrays`."""
    rows = most + 1
    parent = [EMPTY] + [p + 1 for p in parents]  # by row
    first, following = [NONE] * rows, [NONE] * rows
    mask = torch.eye(rows, dtype=torch.bool)
    for row in range(len(parent) - 1, 0, -1):
        following[row] = first[parent[row]]
        first[parent[row]] = row
        above = parent[row]
        while above >= 0:
            mask[row, above] = True
            above = parent[above]
    return {"next_token": torch.tensor(first), "next_sibling": torch.tensor(following), "mask": mask}


def graft(
    tree: Any,
    history: torch.Tensor,
    slots: torch.Tensor,
    prefix_lens: torch.Tensor,
    anchors: torch.Tensor,
    length: int,
) -> None:
    """As `graft.graft`."""
    most = tree.parents.shape[1]
    for b, slot in enumerate(slots.tolist()):
        end = min(max(int(prefix_lens[b]), 0), history.shape[1])
        proposed = chain(history[slot, :end].cpu(), int(anchors[b]), length)
        if not proposed:
            continue
        fields = (tree.parents[b], tree.tokens[b], tree.depths[b], tree.scores[b])
        nodes = [Node(*node) for node in zip(*(field.tolist() for field in fields), strict=True) if node[0] != EMPTY]
        made = grafted(nodes, proposed, most)
        empty = [Node(EMPTY, 0, 0, 0.0)] * (most - len(made))
        for field, values in zip(fields, zip(*made, *empty, strict=True), strict=True):
            field.copy_(torch.tensor(values))
        for name, value in links([node.parent for node in made], most).items():
            getattr(tree, name)[b].copy_(value)
