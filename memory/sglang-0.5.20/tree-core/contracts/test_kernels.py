"""The draft tree's own kernels in Triton's interpreter, and the lattices on made-up drafters."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from tree_modules import tree_modules

HERE = Path(__file__).resolve().parent
BATCH, DEPTH, CANDIDATES, VOCAB, RANK, HIDDEN = 3, 4, 5, 40, 3, 6
EXACT = 1e-5
"""Float32 log-softmax of scores below 16 over 40 words against float64: some units of 2**-20."""


@pytest.fixture(scope="module")
def modules() -> Any:
    return tree_modules(Path.cwd())


def test_kernels_in_the_interpreter() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE / "interpreted.py")], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["rows", "accept", "move", "sum", "beam"]


class Markov(torch.nn.Module):
    """A gated Markov head in the engine's shape of call."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.gate = torch.nn.Embedding(VOCAB, RANK), torch.nn.Linear(HIDDEN, RANK)
        self.w2 = torch.nn.Linear(RANK, VOCAB, bias=False)

    def compute_step_bias(self, token_ids: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.w2(self.w1(token_ids) * torch.sigmoid(self.gate(hidden_states)))


@torch.no_grad()
@pytest.mark.parametrize("at_once", [1, 1 << 28])
def test_markov_scores_are_the_heads_log_probabilities(
    modules: Any, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modules.lattice, "BIAS_ELEMENTS", at_once)
    torch.manual_seed(0)
    head, base, hidden = Markov(), torch.randn(BATCH, DEPTH, VOCAB) * 3, torch.randn(BATCH, DEPTH, HIDDEN)
    anchors = torch.randint(0, VOCAB, (BATCH,))
    monkeypatch.setattr(modules.lattice, "top", lambda scores, count: torch.topk(scores, count, dim=-1))
    ids, unary, pair = modules.lattice.markov_lattice(base.clone(), head, hidden, anchors, CANDIDATES)
    assert unary is None and ids.dtype == torch.int32 and pair.dtype == torch.float32
    for b in range(BATCH):
        for d in range(DEPTH):
            for p in range(CANDIDATES):
                parent = anchors[b] if d == 0 else ids[b, d - 1, p].long()
                said = base[b, d].double() + head.double().compute_step_bias(parent, hidden[b, d].double())
                head.float()
                wanted = said.log_softmax(-1)[ids[b, d].long()]
                assert (pair[b, d, p] - wanted).abs().max() < EXACT
        opening = base[b, 0] + head.compute_step_bias(anchors[b], hidden[b, 0])
        assert set(ids[b, 0].tolist()) == set(opening.topk(CANDIDATES).indices.tolist())
        assert set(ids[b, 2].tolist()) == set(base[b, 2].topk(CANDIDATES).indices.tolist())


def test_marginals_are_over_the_vocabulary(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules.lattice, "top", lambda scores, count: torch.topk(scores, count, dim=-1))
    torch.manual_seed(1)
    logits = torch.randn(BATCH * DEPTH, VOCAB)
    ids, unary, pair = modules.lattice.marginal_lattice(logits, (BATCH, DEPTH), CANDIDATES, lambda x: x.float() * 2)
    assert pair is None
    wanted = (logits.double() * 2).log_softmax(-1).view(BATCH, DEPTH, VOCAB)
    assert (unary - wanted.gather(-1, ids.long())).abs().max() < EXACT
    assert torch.equal(ids.long(), wanted.topk(CANDIDATES).indices)


def test_the_selectors_scores_are_normalised_over_its_candidates(modules: Any) -> None:
    torch.manual_seed(2)
    candidates = torch.rand(BATCH * DEPTH, VOCAB).argsort(-1)[:, :CANDIDATES]
    unary, scores = torch.randn(BATCH * DEPTH, CANDIDATES), torch.randn(BATCH, DEPTH, CANDIDATES, CANDIDATES)
    asked: dict[str, Any] = {}

    def build_lattice(**given: Any) -> torch.Tensor:
        asked.update(given)
        return scores

    model = SimpleNamespace(
        compute_candidates=lambda hidden: (candidates, unary),
        candidate_selector=SimpleNamespace(build_lattice=build_lattice),
    )
    hidden, anchors = torch.randn(BATCH, DEPTH, HIDDEN), torch.arange(BATCH)
    ids, alone, pair = modules.lattice.selector_lattice(model, hidden, anchors)
    assert alone is None and torch.equal(ids.long(), candidates.view(BATCH, DEPTH, -1))
    assert asked["hidden_states"] is hidden and asked["anchor_token_ids"] is anchors
    assert (pair - scores.double().log_softmax(-1)).abs().max() < EXACT
