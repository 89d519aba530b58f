"""The entry `certified-head`: its copies of kernels/, and greedy decoding in the real SGLang on a CPU.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`, or pip downloads 27 MB.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from memory.patched_engine import Trees, added_files, both_trees, compiled, needs_engine, needs_nvcc, passes, run
from memory.w12_model import VOCABULARY, write_model

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "certified-head"
CSRC = "sglang/kernels/jit/csrc/gemm"
OURS = ("sglang/srt/layers/certified_head", f"{CSRC}/certified_head", f"{CSRC}/w12_gemm")
pytest.importorskip("torch")


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """The files that the delta adds."""
    return added_files(ENTRY, tmp_path, *OURS)


def test_copies_of_kernels_have_their_digests_and_give_the_head_s_tokens(added: Path) -> None:
    assert contract_fault(ENTRY, added) is None


def test_a_changed_copy_is_noticed(added: Path) -> None:
    path = added / CSRC / "certified_head" / "emit.cuh"
    path.write_bytes(path.read_bytes() + b"\n")
    assert "test_every_copy_has_the_digest_of_its_source" in str(contract_fault(ENTRY, added))


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    changed = [path for path in entry.delta.paths if not path.startswith(OURS)]
    assert len(changed) == 11, "logits, sampler, beams, both runners, weight updates; DFLASH's file and DSPARK's four"
    assert entry.delta.vary == ("max_total_num_tokens",) and entry.applies.devices == ("sm90",)
    assert server_words([variants], []) == ()
    words = server_words([variants], ["certified-head=on", "rows=32"])
    assert words == ("@env:SGLANG_CERTIFIED_HEAD=1", "@env:SGLANG_CERTIFIED_HEAD_MAX_ROWS=32")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Environments of the stock tree and of the tree that the entry gives."""
    return both_trees(tmp_path_factory.mktemp("certified"), "certified-head")


@needs_engine
@pytest.mark.slow
def test_what_is_deferred_served_and_left_to_stock(trees: Trees) -> None:
    passes(trees["patched"], HERE / "certified_head_engine_checks.py")


SERVED = "certified head: greedy tokens come from the copy"

LEAST = {"sampled": 20.0}
TIE = 1e-3
"""Nats between the two best tokens from which on a choice has to be the same. No two different BF16 logits above 1 are
within the latter. Equal ones: stock on a CPU takes now the one, now the other (in 2 of 12 processes the same request
parted there, one of stock, one of the patched tree). A sampled token of e^-20 is not met."""
LAST = 2 * 2.0**-24
ORDER = 6 * math.sqrt(2 * (VOCABULARY - 1) / 3) * 2.0**-24
"""Two log-probabilities of the same float32 logits: (x - max) - log(sum of exp). Each is rounded once, to steps of LAST
of it at most. The sum may be in another order: VOCABULARY - 1 roundings, each even within 2^-24 of the sum at most, a
standard deviation of 2^-24 / sqrt(3); ORDER is six of a difference's, 6.6e-6. Met: a step and 3e-8. Another logit is a
BF16 step away, 2^-8 of it, and those of the two best are above 1."""
COMPARED = 30
"""Tokens of each kind that at least lie before that, of six prompts with 12 each."""


def reach(kind: str, best: list[list[float]]) -> int:
    """Tokens before the first that may differ, from the two best log-probabilities of every step."""
    return next((at for at, (one, two) in enumerate(best) if one - two <= LEAST.get(kind, TIE)), len(best))


def values_of(kind: str, answers: list[dict[str, Any]], reaches: list[int]) -> list[float]:
    """Log-probabilities of those steps; none where the temperature makes some -1e38."""
    if kind in LEAST:
        return []
    return [v for a, end in zip(answers, reaches, strict=True) for step in a["best"][:end] for v in step]


@needs_engine
@pytest.mark.slow
def test_every_kind_of_request_gets_stock_s_answer(trees: Trees, tmp_path: Path) -> None:
    model, found = write_model(tmp_path / "model"), {}
    arms = {"stock": trees["stock"], "off": trees["patched"], "on": {**trees["patched"], "SGLANG_CERTIFIED_HEAD": "1"}}
    for arm, env in arms.items():
        done = run(env, str(HERE / "certified_head_generate.py"), str(model))
        assert done.returncode == 0, done.stderr[-3000:]
        assert (SERVED in done.stderr) == (arm == "on"), done.stderr[-3000:]
        found[arm] = json.loads(done.stdout.splitlines()[-1])
    stock = found.pop("stock")
    texts = {json.dumps([answer["ids"] for answer in answers]) for kind, answers in stock.items() if kind != "sampled"}
    assert len(texts) == 3  # biases and penalties change tokens
    for kind, answers in stock.items():
        reaches = [reach(kind, answer["best"]) for answer in answers]
        assert sum(reaches) >= COMPARED, (kind, reaches)
        expected = values_of(kind, answers, reaches)
        for arm, ours in found.items():
            for end, theirs, mine in zip(reaches, answers, ours[kind], strict=True):
                for key in ("ids", "told"):
                    assert mine[key][:end] == theirs["told"][:end], (arm, kind, key, reaches)
            values = values_of(kind, ours[kind], reaches)
            apart = [abs(a - b) - LAST * abs(b) for a, b in zip(values, expected, strict=True)]
            assert max(apart, default=0.0) <= ORDER, (arm, kind)


JIT = """
from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
from sglang.srt.layers.certified_head import ops, plan
with override_jit_cuda_arch(9, 0):
    module = ops._module()
table = [plan.Variant(i, str(module.name(i)), module.columns(i)) for i in range(module.count())]
chosen = {m: plan.choose(table, m) for m in range(1, plan.MAX_ROWS + 1)}
assert all(v.columns >= 2 * m for m, v in chosen.items())
assert module.argmax(*[0] * 26) == -2  # no rows
print("compiled", len(table))
"""


@needs_engine
@pytest.mark.slow
@needs_nvcc
def test_the_engine_s_own_jit_compiles_the_copies_for_sm_90a(trees: Trees, tmp_path: Path) -> None:
    assert compiled(trees["patched"], JIT, tmp_path).startswith("compiled ")
