"""A toy engine around the entry's glue: trees planted before a pass, paths committed after it, as AR has them."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import parts

glue = parts.parts()
WORDS, REQUESTS, NODES, DEPTH, HEADS, VALUE_HEADS, WIDTH = 5, 3, 9, 4, 1, 2, 4
SCALE = WIDTH**-0.5


class Target:
    """One Gated DeltaNet layer: a word's row reads the state and says the next word. float64."""

    def __init__(self) -> None:
        def drawn(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, dtype=torch.float64)

        self.rows = {"q": drawn(WORDS, HEADS, WIDTH), "k": drawn(WORDS, HEADS, WIDTH)}
        self.rows |= {"v": drawn(WORDS, VALUE_HEADS, WIDTH), "a": drawn(WORDS, VALUE_HEADS) - 2}
        self.rows["b"] = drawn(WORDS, VALUE_HEADS)
        self.layer = {"a_log": drawn(VALUE_HEADS), "dt_bias": drawn(VALUE_HEADS)}
        self.head, self.state = drawn(VALUE_HEADS * WIDTH, WORDS), drawn(REQUESTS, VALUE_HEADS, WIDTH, WIDTH)

    def inputs(self, words: torch.Tensor) -> object:
        """Rows of words [B, N]."""
        return glue.reference.Inputs(**{name: table[words] for name, table in self.rows.items()}, **self.layer)

    def says(self, words: torch.Tensor, state: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        """[B, N]: the next word behind every row's path."""
        out = glue.reference.verify(self.inputs(words), state, parents, SCALE)
        return (out.flatten(2) @ self.head).argmax(-1)


def close(one: torch.Tensor, other: torch.Tensor, steps: int) -> bool:
    """The same state up to roundings, which depend on where a row lies in its tensor.

    A step rounds fewer than 64 times an element, on numbers of at most the largest, and does not enlarge what it is
    given: decay and beta lie between 0 and 1, keys have length 1. A row more or less moves a state by some hundredths.
    """
    largest = max(float(one.abs().max()), 4.0)
    return float((one - other).abs().max()) <= steps * 64 * torch.finfo(torch.float64).eps * largest


def alone(target: Target, words: torch.Tensor, count: int) -> tuple[list[list[int]], list[torch.Tensor]]:
    """AR: the texts, and all requests' states after every word that was read."""
    state, texts, states = target.state.clone(), [[] for _ in range(REQUESTS)], []
    for _ in range(count):
        words = words.view(-1, 1)
        said = target.says(words, state, torch.full((REQUESTS, 1), -1))
        one = torch.zeros(REQUESTS, 1, dtype=torch.int64)
        state = glue.reference.commit(target.inputs(words), state, one, torch.ones(REQUESTS, dtype=torch.int64))
        states.append(state)
        words = said[:, 0]
        for text, word in zip(texts, words.tolist(), strict=True):
            text.append(word)
    return texts, states


class Backend:
    """The target's side of the glue: planted rows, committed states, kept prefixes."""

    def __init__(self, target: Target) -> None:
        self.target, self.state, self.kept = target, target.state.clone(), {}
        self.parents, self.inputs = torch.zeros(REQUESTS, NODES + 1, dtype=torch.int64), None
        self.trees, self.sizes = True, SimpleNamespace(requests=REQUESTS + 1, rows=NODES + 1)
        self.chain = torch.arange(NODES + 1).repeat(REQUESTS + 1, 1)

    def plant(self, nodes: torch.Tensor) -> None:
        """As `TreeRows.plant` says it."""
        self.parents = torch.cat([torch.full((REQUESTS, 1), -1), (nodes + 1).clamp(min=-1).where(nodes > -2, -1)], 1)

    def update_mamba_state_after_mtp_verify(self, **given) -> None:  # type: ignore[no-untyped-def]
        last, track = given["last_correct_step_indices"], given["mamba_steps_to_track"]
        assert given["model"] == "model" and given["req_pool_indices"].tolist() == list(range(REQUESTS))
        walked = [self.inputs, self.state, given["accepted_path"]]
        self.kept = {}
        if given["mamba_track_indices"] is not None:
            states = glue.reference.commit(*walked, (track + 1).clamp(min=0))
            self.kept = {request: states[request] for request in range(REQUESTS) if track[request] >= 0}
        self.state = glue.reference.commit(*walked, last + 1)


def grown(generator: torch.Generator, right: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Parents and words of random trees of up to DEPTH levels, now and then the right text among them, in any order."""
    parents, words = torch.full((REQUESTS, NODES), -2), torch.zeros(REQUESTS, NODES, dtype=torch.int64)
    for request in range(REQUESTS):
        depths: list[int] = []
        for node in range(NODES - request):  # the rest of the places holds no node
            above = int(torch.randint(-1, max(node, 1), (), generator=generator)) if node else -1
            above = -1 if above >= 0 and depths[above] >= DEPTH else above
            depths.append(1 if above < 0 else depths[above] + 1)
            parents[request, node] = above
            word = int(torch.randint(0, WORDS, (), generator=generator))
            ahead = right[request][depths[-1] - 1 : depths[-1]]
            words[request, node] = ahead[0] if ahead and word % 2 else word
    return parents.int(), words.int()


@pytest.mark.parametrize("prefixes", [False, True])
def test_texts_and_states_are_ars_after_every_step(prefixes: bool) -> None:
    torch.manual_seed(0)
    target, generator = Target(), torch.Generator().manual_seed(1)
    words = torch.tensor([1, 2, 3])
    texts, states = alone(target, words, 24 * (DEPTH + 1))
    backend, found = Backend(target), [[] for _ in range(REQUESTS)]
    runner = SimpleNamespace(
        model="model",
        model_config=SimpleNamespace(gdn=True),
        attn_backend=backend,
        req_to_token_pool=SimpleNamespace(mamba_pool=SimpleNamespace(gdn_rows=backend)),
    )
    layers = glue.recurrent.RecurrentLayers.of(runner, NODES + 1, DEPTH + 1)
    lengths, apart, tracked = torch.zeros(REQUESTS, dtype=torch.int64), 0, 0
    for _ in range(24):
        parents, tokens = grown(generator, [text[len(mine) :] for text, mine in zip(texts, found, strict=True)])
        rows = torch.cat([words.view(-1, 1), tokens.long()], 1)
        layers.plant(parents)
        backend.inputs = target.inputs(rows)
        predict = target.says(rows, backend.state, backend.parents)
        slots = torch.arange(REQUESTS * (NODES + 1)).view(REQUESTS, -1)
        done = glue.accept.accept(parents, tokens, predict, slots, lengths, DEPTH)
        batch = SimpleNamespace(
            seq_lens=lengths,
            req_pool_indices=torch.arange(REQUESTS),
            mamba_track_indices=torch.arange(REQUESTS) if prefixes else None,
            tree_cache=SimpleNamespace(page_size=1),
        )
        layers.commit(batch, done)
        path = done.rows % (NODES + 1)
        apart += int(((path[:, 1:] != path[:, :-1] + 1) & (path[:, 1:] > 0)).sum())
        for request, state in backend.kept.items():
            at = int(done.new_seq_lens[request]) // 4 * 4
            tracked += 1
            assert close(state, states[at - 1][request], at)
        lengths, words = done.new_seq_lens, done.bonus
        for request, count in enumerate(done.commit_lens.tolist()):
            found[request] += done.tokens[request, :count].tolist()
            assert found[request] == texts[request][: len(found[request])]
            assert close(backend.state[request], states[len(found[request]) - 1][request], len(found[request]))
    assert apart > 10, "accepted rows do not lie side by side"
    assert sum(map(len, found)) > 3 * 24 + 20 and (tracked > 10) == prefixes


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check, none = glue.recurrent.check_recurrent, SimpleNamespace(gdn=None, mamba=None)
    check(none, 255)
    with pytest.raises(ValueError, match="another kind than Gated DeltaNet"):
        check(SimpleNamespace(gdn=None, mamba=True), 8)
    hybrid = SimpleNamespace(gdn=True, mamba=None)
    monkeypatch.delenv(glue.switch.TREE, raising=False)
    with pytest.raises(ValueError, match="SGLANG_GDN_TREE=path"):
        check(hybrid, 8)
    monkeypatch.setenv(glue.switch.VARIABLE, "triton")
    monkeypatch.setenv(glue.switch.TREE, "path")
    check(hybrid, 63)
    with pytest.raises(ValueError, match="from 1 to 63"):
        check(hybrid, 64)


def test_a_dense_target_has_no_recurrent_part_and_a_pool_without_trees_is_refused() -> None:
    rows = glue.recurrent.RecurrentLayers
    assert rows.of(SimpleNamespace(model_config=SimpleNamespace(gdn=None, mamba=None)), 8, 4) is None
    for kept in (None, SimpleNamespace(trees=False), SimpleNamespace(trees=True, sizes=SimpleNamespace(rows=9))):
        pool = SimpleNamespace(mamba_pool=SimpleNamespace(gdn_rows=kept))
        with pytest.raises(ValueError, match="no trees of 8 rows"):
            rows.of(SimpleNamespace(model_config=SimpleNamespace(gdn=True), req_to_token_pool=pool), 8, 4)


def test_attention_is_looked_up_inside_of_a_hybrid() -> None:
    inner = SimpleNamespace(attn_backend="backend", token_to_kv_pool="pool")
    outer = SimpleNamespace(
        attn_backend=SimpleNamespace(full_attn_backend="backend"), token_to_kv_pool=SimpleNamespace(full_kv_pool="pool")
    )
    for runner in (inner, outer):
        assert glue.recurrent.attention_parts(runner) == ("backend", "pool")
