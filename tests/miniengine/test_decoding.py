"""Decoding is lossless: whatever the drafter proposes, the output is the target's own greedy text."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from miniengine.cache import Cache, KVSlots
from miniengine.decode import Decoder, Request
from miniengine.drafter import Drafter
from miniengine.lattice import Lattice
from miniengine.model import Model
from miniengine.proposal import Proposal, accept_chain, greedy_chain
from miniengine.scoring import score

Engine = tuple[Model, Drafter]


def run(decoder: Decoder, prompts: list[list[int]], limit: int, **options: Any) -> list[Request]:
    """Decode a batch, ignoring EOS."""
    return decoder.generate([Request(p, limit, ignore_eos=True) for p in prompts], **options).requests


class OracleDecoder(Decoder):
    """Proposes the known text with a planted error after `correct` drafts: every acceptance length on demand."""

    def __init__(self, model: Model, drafter: Drafter, text: list[int], correct: int) -> None:
        super().__init__(model, drafter, 8)
        self.text, self.correct = text, correct

    def draft(self, cache: Cache, context: KVSlots, anchor: torch.Tensor) -> Lattice:
        lattice = super().draft(cache, context, anchor)
        following = [*self.text[cache.longest + 1 :], *[0] * 8][:8]
        for position, token in enumerate(following):
            lattice.ids[0, position, 0] = token if position < self.correct else (token + 1) % 61
        lattice.transitions[0] = torch.tensor([0.0] + [-9.0] * (lattice.ids.shape[2] - 1))
        return lattice


@pytest.mark.parametrize("draft_tokens", [1, 8, 16])
def test_speculative_output_equals_ar(engine: Engine, prompts: list[list[int]], draft_tokens: int) -> None:
    model, drafter = engine
    want = [run(Decoder(model), [p], 40)[0].output for p in prompts]
    assert len({token for text in want for token in text}) > 5, "a constant text would prove nothing"
    alone = [run(Decoder(model, drafter, draft_tokens), [p], 40)[0].output for p in prompts]
    batch = [r.output for r in run(Decoder(model, drafter, draft_tokens), prompts, 40)]
    assert alone == want
    assert batch == want


def test_ar_batch_equals_one_by_one(engine: Engine, prompts: list[list[int]]) -> None:
    decoder = Decoder(engine[0])
    assert [r.output for r in run(decoder, prompts, 20)] == [run(decoder, [p], 20)[0].output for p in prompts]


@pytest.mark.parametrize("correct", range(9))
def test_every_acceptance_length_commits_the_right_state(engine: Engine, correct: int) -> None:
    model, drafter = engine
    prompt = [3, 14, 15, 9, 26]
    text = prompt + run(Decoder(model), [prompt], 60)[0].output
    request = run(OracleDecoder(model, drafter, text, correct), [prompt], 40)[0]
    assert request.output == text[5:45]
    assert set(request.accept_lengths[:-1]) == {correct + 1}


def test_committed_cache_equals_a_fresh_prefill(engine: Engine) -> None:
    """After k of 9 rows are kept, states and keys are those of a prefill of exactly these tokens.

    Tolerance: float32, values of order 1, sums of at most 40 terms: 1e-4 is some hundred roundings; a state of the
    wrong row differs by order 0.1.
    """
    model = engine[0]
    ids = torch.randint(1, 61, (2, 20), generator=torch.Generator().manual_seed(1))
    for kept in range(1, 10):
        cache, fresh = model.new_cache(2, 64), model.new_cache(2, 64)
        with torch.inference_mode():
            cache.commit(model(ids[:, :11], cache).written, torch.tensor([11, 11]))
            cache.commit(model(ids[:, 11:], cache, snapshots=True).written, torch.tensor([kept, 10 - kept]))
            for b, count in enumerate((11 + kept, 21 - kept)):
                fresh = model.new_cache(1, 64)
                fresh.commit(model(ids[b : b + 1, :count], fresh).written, torch.tensor([count]))
                assert int(cache.lengths[b]) == count
                for got, want in ((cache.state[:, b], fresh.state[:, 0]), (cache.conv[:, b], fresh.conv[:, 0]),
                                  (cache.kv.k[:, b, :count], fresh.kv.k[:, 0, :count]),
                                  (cache.kv.v[:, b, :count], fresh.kv.v[:, 0, :count])):  # fmt: skip
                    assert got.numel() == 0 or (got - want).abs().max() < 1e-4


def test_chunked_prefill_equals_token_by_token(engine: Engine) -> None:
    model = engine[0]
    ids = torch.randint(1, 61, (1, 300), generator=torch.Generator().manual_seed(2))
    whole, single = model.new_cache(1, 320), model.new_cache(1, 320)
    with torch.inference_mode():
        together = model.logits(model(ids, whole).hidden)[0]
        for t in range(300):
            out = model(ids[:, t : t + 1], single)
            single.commit(out.written, torch.tensor([1]))
            assert (model.logits(out.hidden)[0, 0] - together[t]).abs().max() < 1e-2 * together[t].abs().max()


def test_long_prompts_are_prefilled_in_chunks(engine: Engine) -> None:
    """300 tokens need two chunks; a batch with a short prompt must not read the padding."""
    model, drafter = engine
    make = torch.Generator().manual_seed(5)
    prompts = [torch.randint(1, 61, (n,), generator=make).tolist() for n in (300, 7)]
    want = [run(Decoder(model), [p], 10)[0].output for p in prompts]
    assert [r.output for r in run(Decoder(model, drafter, 8), prompts, 10)] == want


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_output_is_cut_exactly_and_counters_stop_at_the_cut(engine: Engine, limit: int) -> None:
    model, drafter = engine
    prompt = [3, 14, 15]
    text = prompt + run(Decoder(model), [prompt], 60)[0].output
    request = run(OracleDecoder(model, drafter, text, 8), [prompt], limit)[0]
    assert request.output == text[3 : 3 + limit]
    assert request.finish == "length"
    assert 1 + sum(request.accept_lengths) == limit


def test_eos_ends_a_sequence_and_what_follows_is_not_counted(engine: Engine) -> None:
    model, drafter = engine
    prompt = [3, 14, 15]
    output = run(Decoder(model), [prompt], 60)[0].output
    place = next(i for i in range(3, 60) if output[i] not in output[:i])
    object.__setattr__(model.config, "eos_token_id", output[place])
    for decoder in (Decoder(model), OracleDecoder(model, drafter, prompt + output, 8)):
        request = decoder.generate([Request(prompt, 60)]).requests[0]
        assert request.output == output[: place + 1]
        assert request.finish == "stop"
        assert not request.accept_lengths or 1 + sum(request.accept_lengths) == place + 1


def test_scoring_agrees_with_greedy_decoding(engine: Engine) -> None:
    model = engine[0]
    prompt = [3, 14, 15]
    output = run(Decoder(model), [prompt], 300)[0].output
    result = score(model, prompt + output, 2, 2)
    assert [entry[1] for entry in result["input_token_logprobs"]] == [15, *output]
    assert result["input_token_logprobs"][0][0] is None
    assert result["input_top_logprobs"][0] is None
    for (value, token), best in zip(result["input_token_logprobs"][1:], result["input_top_logprobs"][1:], strict=True):
        assert token == best[0][1] and value == best[0][0] and value >= best[1][0]


def test_ties_take_the_lowest_id() -> None:
    logits = torch.zeros(1, 3, 61)
    logits[:, :, [9, 30]] = 1.0
    assert logits.argmax(-1).unique().tolist() == [9]


def test_lattice_is_a_lattice(engine: Engine, prompts: list[list[int]]) -> None:
    model, drafter = engine
    requests = run(Decoder(model, drafter, 8), prompts, 20, want_lattice=True)
    for request in requests:
        text = request.prompt + request.output
        assert len(request.lattice) == len(request.accept_lengths)
        for step in request.lattice:
            assert text[step["position"]] == step["anchor"]
            assert all(len(set(row)) == 7 for row in step["candidates"])
            mass = torch.tensor(step["transitions"]).exp().sum(-1)
            full = drafter.config.algorithm == "DFLASH2"
            assert ((mass - 1).abs() < 1e-5).all() if full else (mass < 1 + 1e-5).all()
            first = torch.tensor(step["transitions"][0])
            assert (first == first[0]).all(), "at the first position every parent is the anchor"
            assert all(t in c for t, c in zip(step["chain"], step["candidates"], strict=True))
            accepted = [*step["chain"][: step["correct_drafts"]], step["bonus"]]
            following = text[step["position"] + 1 :][: len(accepted)]
            assert accepted[: len(following)] == following


def test_dspark_transitions_are_the_markov_head_over_the_whole_vocabulary(prompts: list[list[int]]) -> None:
    """Recompute one transition by the definition: log softmax_v(U[e, v] + W1[p] . W2[v]) at v = c."""
    from miniengine.lattice import build_lattice

    torch.manual_seed(3)
    rows, head, anchor = torch.randn(1, 4, 24), torch.randn(61, 24), torch.tensor([5])
    drafter = _random_drafter("DSPARK")
    with torch.inference_mode():
        lattice = build_lattice(drafter, head, rows, anchor)
        parent, child = int(lattice.ids[0, 1, 3]), int(lattice.ids[0, 2, 4])
        scores = rows[0, 2] @ head.T + drafter.predecessor[parent] @ drafter.successor.T
    assert abs(float(lattice.transitions[0, 2, 3, 4]) - float(scores.log_softmax(-1)[child])) < 1e-5


def test_dflash2_transitions_are_the_selector_over_the_candidates() -> None:
    """score[e, p, c] = unary[e, c] + <A[p] * proj(h_e), B[c]>, log-softmax over the candidates."""
    from miniengine.lattice import build_lattice

    torch.manual_seed(3)
    rows, head, anchor = torch.randn(1, 4, 24), torch.randn(61, 24), torch.tensor([5])
    drafter = _random_drafter("DFLASH2")
    assert drafter.gate is not None
    with torch.inference_mode():
        lattice = build_lattice(drafter, head, rows, anchor)
        names = lattice.ids[0, 2]
        left = drafter.predecessor[lattice.ids[0, 1, 3]] * (drafter.gate @ rows[0, 2])
        want = (head[names] @ rows[0, 2] + drafter.successor[names] @ left).log_softmax(-1)
    assert (lattice.transitions[0, 2, 3] - want).abs().max() < 1e-5


def _random_drafter(algorithm: str) -> Drafter:
    from miniengine.config import DrafterConfig, ModelConfig

    model = ModelConfig(61, 24, 40, ("full_attention",) * 3, 4, 2, 8)
    drafter = Drafter(DrafterConfig(algorithm, (1, 2), 1, 32, 4, 2, 8, rank=5, top_k=7), model)
    with torch.no_grad():
        drafter.predecessor.normal_()
        drafter.successor.normal_()
    return drafter


def test_greedy_chain_follows_the_taken_parent() -> None:
    ids = torch.tensor([[[4, 5], [6, 7], [8, 9]]])
    transitions = torch.log(torch.tensor([[
        [[0.4, 0.6], [0.4, 0.6]], [[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.5, 0.5]],
    ]]))  # fmt: skip
    proposal = greedy_chain(Lattice(ids, transitions[:, :, 0], transitions), torch.tensor([1]))
    assert proposal.tokens.tolist() == [[1, 5, 7, 8]]
    assert proposal.parents == [[-1, 0, 1, 2]]


def test_acceptance_stops_at_the_first_difference() -> None:
    proposal = Proposal(torch.tensor([[1, 5, 7, 8], [1, 5, 7, 8], [1, 5, 7, 8]]), [[-1, 0, 1, 2]] * 3)
    assert accept_chain(proposal, [[5, 7, 8, 3], [5, 0, 8, 3], [0, 7, 8, 3]]) == [3, 1, 0]


def test_bfloat16_weights_decode_and_the_float32_head_is_real(engine: Engine) -> None:
    model, drafter = engine
    model.bfloat16()
    drafter.bfloat16()
    cache = model.new_cache(1, 16)
    assert cache.state.dtype == torch.float32, "the recurrence keeps float32 states under bfloat16 weights"
    assert len(run(Decoder(model, drafter, 8), [[3, 14, 15]], 12)[0].output) == 12
    with torch.inference_mode():
        hidden = model(torch.tensor([[3, 14, 15]]), cache).hidden
        assert model.logits(hidden).dtype == torch.bfloat16
        model.fp32_lm_head = True
        assert model.logits(hidden).dtype == torch.float32
        assert not torch.equal(model.logits(hidden), model.logits(hidden).bfloat16().float())
