"""What is kept of requests' texts (prompts, steps of trees, steps of stock), and that chains reach the verify pass."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from text_modules import text_modules

WORDS, SLOTS, PLACES, POSITIONS, NODES, CHAIN = 40, 4, 32, 5, 12, 4


@pytest.fixture(scope="module")
def modules() -> Any:
    return text_modules(Path.cwd())


@pytest.fixture
def text(modules: Any) -> Any:
    table = torch.zeros(SLOTS, PLACES, dtype=torch.int32)
    runner = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=table), model_config=SimpleNamespace(vocab_size=WORDS)
    )
    return modules.text.RequestText(runner, CHAIN)


def mode(*, extend: bool = False, idle: bool = False) -> Any:
    return SimpleNamespace(is_extend=lambda: extend, is_idle=lambda: idle)


def request(slot: int, ids: list[int]) -> Any:
    return SimpleNamespace(kv=SimpleNamespace(req_pool_idx=slot), get_fill_ids=lambda: ids)


def prefill(requests: list[Any], decoding: list[Any] | None = None) -> Any:
    return SimpleNamespace(
        forward_mode=mode(extend=True), is_extend_in_batch=False, reqs=requests, decoding_reqs=decoding,
        req_pool_indices=torch.tensor([one.kv.req_pool_idx for one in requests]),
    )  # fmt: skip


def decode(slots: list[int], anchors: list[int]) -> Any:
    return SimpleNamespace(
        forward_mode=mode(), is_extend_in_batch=False, req_pool_indices=torch.tensor(slots),
        spec_info=SimpleNamespace(bonus_tokens=torch.tensor(anchors)),
    )  # fmt: skip


def anchored(anchors: list[int], new_lens: list[int]) -> Any:
    """What a prefill gives."""
    return SimpleNamespace(next_token_ids=torch.tensor(anchors), new_seq_lens=torch.tensor(new_lens))


def result(tokens: list[list[int]], counts: list[int], new_lens: list[int]) -> Any:
    return SimpleNamespace(
        next_token_ids=torch.tensor(tokens).reshape(-1), accept_lens=torch.tensor(counts, dtype=torch.int32),
        new_seq_lens=torch.tensor(new_lens),
    )  # fmt: skip


def test_prompts_then_steps_of_any_width(text: Any) -> None:
    made = anchored([10, 20], [3, 1])
    batch = prefill([request(2, [5, 6, 7]), request(1, [9])])
    assert text.follow(batch, lambda: made) is made
    assert text.make()[2, :4].tolist() == [5, 6, 7, 10] and text.make()[1, :2].tolist() == [9, 20]
    step = result([[11, 12, 13, 0], [21, 99, 99, 99]], [3, 1], [6, 2])
    assert text.follow(decode([2, 1], [10, 20]), lambda: step) is step
    assert text.make()[2, :7].tolist() == [5, 6, 7, 10, 11, 12, 13]
    assert text.make()[1, :3].tolist() == [9, 20, 21]
    text.follow(decode([1], [21]), lambda: result([[22, 23]], [2], [4]))  # a chain of stock: fewer tokens a step
    assert text.make()[1, :6].tolist() == [9, 20, 21, 22, 23, 0]
    assert not text.make()[0].any() and not text.make()[3].any(), "nobody else's row is touched"


def test_a_request_that_decodes_beside_prompts_keeps_what_is_there(text: Any) -> None:
    running, new = request(1, [1, 1, 1, 1]), request(2, [3, 4])
    text.make()[1, :4] = torch.tensor([7, 8, 9, 10], dtype=torch.int32)
    text.follow(prefill([new, running], [running]), lambda: anchored([5, 11], [2, 4]))
    assert text.make()[1, :5].tolist() == [7, 8, 9, 10, 11] and text.make()[2, :3].tolist() == [3, 4, 5]


def test_numbers_that_are_no_words_never_become_drafts(text: Any) -> None:
    text.follow(prefill([request(1, [4, WORDS, -1, 1 << 40, WORDS - 1])]), lambda: anchored([3], [5]))
    assert text.make()[1, :5].tolist() == [4, 0, 0, 0, WORDS - 1]


def test_an_idle_step_is_nobodys(text: Any) -> None:
    assert text.follow(SimpleNamespace(forward_mode=mode(idle=True)), lambda: 3) == 3


@pytest.mark.parametrize("with_text", [True, False])
def test_chains_are_rows_of_the_verify_pass(modules: Any, text: Any, with_text: bool) -> None:
    """A request whose text repeats, and one whose does not, whose tree stays."""
    generator = torch.Generator().manual_seed(1)
    pair = torch.randn(2, POSITIONS, 3, 3, generator=generator).log_softmax(-1)
    ids = torch.arange(2 * POSITIONS * 3, dtype=torch.int32).view(2, POSITIONS, 3)
    text.make()[1, :8] = torch.tensor([31, 32, 33, 34, 35, 36, 31, 32], dtype=torch.int32)
    text.make()[3, :8] = torch.arange(8, dtype=torch.int32)
    block = torch.zeros(2, POSITIONS + 1, dtype=torch.int64)
    block[:, 0] = torch.tensor([33, 30])
    prefix = torch.tensor([8, 8])
    masks = torch.zeros(modules.arrays.full_mask_size(16, 2, NODES + 1), dtype=torch.uint8)
    sampler = modules.sampler.TreeSampler(
        lambda hidden, anchors: (ids, None, pair), lambda batch: masks, rows_per_request=POSITIONS + 1, nodes=NODES,
        max_batch=2, device="cpu", text=text if with_text else None,
    )  # fmt: skip
    made = sampler(torch.zeros(2 * (POSITIONS + 1), 2), block.reshape(-1), prefix, torch.tensor([1, 3]))
    rows = modules.arrays.mask_cells(prefix, NODES + 1)
    seen = masks[rows.reshape(-1)].view(2, NODES + 1, NODES + 1)
    chain = [34, 35, 36, 31]
    where = [made.tokens[0].tolist().index(token) if token in made.tokens[0].tolist() else -1 for token in chain]
    assert (min(where) > 0) == with_text
    if with_text:
        assert made.positions[0, where].tolist() == [9, 10, 11, 12]
        last = seen[0, where[-1]].nonzero().view(-1).tolist()
        assert last == sorted([0, *where]), "it sees the anchor and the chain above it, itself too, and nothing else"
    assert set(made.tokens[1, 1:].tolist()) <= set(ids[1].reshape(-1).tolist())
