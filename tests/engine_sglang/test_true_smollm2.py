"""SmolLM2-135M on the real SGLang 0.5.20 at BF16, on a CPU: near-ties pass token forcing, a planted fault does not.

Minutes on two cores. `SGLANG_TEST_PYTHON` as for `test_true_engine.py`; `SGLANG_TEST_SMOLLM2`: the folder that
`examples/testbed/convert.py` writes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from specpilot_cli.engine.sglang.adapter import SglangAdapter
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.server import SglangServer, generation
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.forcing.bounds import PairedCounts
from specpilot_cli.forcing.margin import Rule, judge
from specpilot_cli.forcing.rules import rate_rule
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.testbed.chat import chat_encoder

PYTHON, MODEL = os.environ.get("SGLANG_TEST_PYTHON"), os.environ.get("SGLANG_TEST_SMOLLM2")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (PYTHON and MODEL), reason="SGLANG_TEST_PYTHON and SGLANG_TEST_SMOLLM2 are not both set"),
]
TOKENS = 128
MESSAGES = (
    "Why does ice float on water? Explain it to a child.",
    "Write a short letter to a neighbour whose dog barks at night.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the trip take? Show your steps.",
    "Describe how bread is made, from the flour to the loaf.",
    "Write a Python function that returns the second largest number of a list.",
    "What is the difference between a lake and a sea?",
    "Tell a story about a lighthouse keeper who finds a map.",
    "List five things to check before a long bicycle tour, with a reason for each.",
    "Explain in simple words what a compiler does.",
    "A box holds 12 rows of 8 oranges. A quarter of them are sold. How many are left?",
    "Summarise the water cycle in four sentences.",
    "Write a Python function that counts the vowels of a string, with an example call.",
    "Why do we have leap years?",
    "Give three arguments for and three against homework.",
    "Write a poem about the first snow in a town by the sea.",
    "How would you explain to a friend what interest on a loan is?",
)
FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none --dtype bfloat16 "
    "--skip-tokenizer-init --disable-radix-cache --max-total-tokens 8192 --context-length 1024 --random-seed 0"
).split()
Outputs = list[tuple[int, ...]]


def answers(server: SglangServer, prompts: Sequence[Sequence[int]], bias: float = 0.0) -> Outputs:
    """Greedy outputs of one batch; with `bias` nats more on every 7th token."""
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    if bias:
        sampling |= {"logit_bias": {str(token): bias for token in range(0, 49152, 7)}}
    body = {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling}
    return [generation(item, 1.0).output_ids for item in server._json("POST", "/generate", body)]


def wrong(server: SglangServer, prompt: Sequence[int], output: Sequence[int]) -> list[tuple[int, int, float]]:
    """Position, token and margin (nats) of every mismatch."""
    found = judge(server.score(prompt, output), prompt, Rule(1.0, "bfloat16"))[0]
    return [(item.position, item.token, item.margin_nats) for item in found]


def compared(stock: Outputs, other: Outputs, at: dict[tuple[int, ...], list[tuple[int, int, float]]]) -> PairedCounts:
    """Mismatches and tokens by request; what both share up to their first difference is left out."""
    rows = []
    for one, two in zip(other, stock, strict=True):
        shared = next((i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b), TOKENS)
        rows.append([len([p for p, *_ in at[one] if p >= shared]), TOKENS])
        rows[-1] += [len([p for p, *_ in at[two] if p >= shared]), TOKENS]
    return PairedCounts(*np.array(rows, dtype=float).T)


def test_near_ties_pass_and_a_fault_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(tmp_path / "stock", wheel=Path(wheel) if wheel else None)
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(write_stubs(tmp_path / "stubs")))
    prompts = [chat_encoder(Path(str(MODEL)))(text) for text in MESSAGES]
    adapter, args = SglangAdapter(), ("--model-path", str(MODEL), *FLAGS)
    server = adapter.launch(stock.path, args, log=tmp_path / "log", timeout_s=400)
    try:
        made = {
            "stock": answers(server, prompts[:8]) + answers(server, prompts[8:]),
            "honest": answers(server, prompts),
            "fault": answers(server, prompts, bias=2.0),
        }
    finally:
        server.close()
    scorer = adapter.launch(stock.path, adapter.scorer_args(args), log=tmp_path / "log", timeout_s=400)
    try:
        asked = {(n, o) for outputs in made.values() for n, o in enumerate(outputs)}
        at = {o: wrong(scorer, prompts[n], o) for n, o in sorted(asked)}
    finally:
        scorer.close()
    total = len(prompts) * TOKENS
    rates = {name: sum(len(at[o]) for o in outputs) / total for name, outputs in made.items()}
    largest = max(margin for o in made["honest"] for *_, margin in at[o])
    print(f"mismatches of {total} tokens: {rates}, largest honest margin {largest:.3f} nat")
    assert 0.002 < rates["honest"] < 0.04, "BF16 has near-ties"
    assert 0.10 < rates["fault"] < 0.30
    thresholds = load_thresholds()
    assert rate_rule(compared(made["stock"], made["honest"], at), thresholds).outcome == "pass"
    assert rate_rule(compared(made["stock"], made["fault"], at), thresholds).outcome == "reject"
    planted = [token for o in made["fault"] for _, token, _ in at[o]]
    assert sum(token % 7 == 0 for token in planted) > 0.9 * len(planted)
