"""The entry `tree-ngram` in the real SGLang 0.5.20 on a CPU: texts, what is kept of them, steps saved, graphs, faults.

Environment and models: see `test_tree_core_engine.py`. A random target over 24 words soon repeats itself, so its text
goes on as it did before, and drafters that know nothing of it leave the chain something to bring. Minutes.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_sglang.drafters_on_cpu import replace
from engine_sglang.graphs_on_cpu import allow_graphs
from engine_sglang.test_tree_core_engine import (
    DFLASH,
    NODES,
    PROMPTS,
    PYTHON,
    TOKENS,
    environment,
    expected,
    prepare,
    run,
)
from engine_sglang.tree_on_cpu import allow_kernels

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies"),
]
CHAIN = {"speculative_tree_ngram": 7}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash2": ("dflash2", {"speculative_tree_nodes": 24}),
    "dspark": ("dspark", {"speculative_tree_nodes": 40}),
    "a chain and no tree": ("dspark", {"speculative_tree_nodes": 7}),
    "ddtree": ("dflash2", {"speculative_tree_nodes": 16, "speculative_tree_mode": "ddtree"}),
    "pages and prefixes": ("dspark", {"speculative_tree_nodes": 16, "page_size": 4, "disable_radix_cache": False}),
    "no overlap": ("dflash2", {"speculative_tree_nodes": 16, "disable_overlap_schedule": True}),
    "mixed chunks": ("dflash2", {"speculative_tree_nodes": 30, "enable_mixed_chunk": True, "chunked_prefill_size": 8}),
    "chains of stock among the steps": ("dflash2", {"speculative_tree_nodes": 30, "speculative_tree_max_requests": 2}),
    "too few slots": ("dflash2", {"speculative_tree_nodes": 30, "max_total_tokens": 330}),
}
TEXT = "sglang/srt/speculative/draft_tree/request_text.py"
FLAG = [*DFLASH, *NODES, "--speculative-tree-ngram"]
REFUSED = {
    "must be from 0 to 7 with 32 nodes and 7 draft positions, got 8": [*FLAG, "8"],
    "must be from 0 to 7 with 32 nodes and 7 draft positions, got -1": [*FLAG, "-1"],
    "use another --speculative-tree-mode than beam": [*FLAG, "7", "--speculative-tree-mode", "beam"],
}
SPY = '''

def _spy(text, batch, done):
    """What the buffer holds of every request after a step, anchors included; a prompt's chunk has no real anchor."""
    import json, os

    if done.accept_lens is None:
        return
    with open(os.environ["SPY"], "a") as file:
        for slot, end in zip(batch.req_pool_indices.tolist(), done.new_seq_lens.tolist()):
            file.write(json.dumps(text.make()[slot, : end + 1].tolist()) + "\\n")
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the patched worktree `tree`, `stubs`, `models`, and AR's texts."""
    return prepare(tmp_path_factory.mktemp("ngrams"), "tree-ngram")


def changed(place: Path, name: str, change: Callable[[Path], None]) -> str:
    """The name of a copy of the worktree that was changed."""
    if not (place / name).exists():
        shutil.copytree(place / "tree", place / name)
        change(place / name)
    return name


def spy(tree: Path) -> None:
    """Write down what is kept after every step."""
    replace(tree / TEXT, "        return done\n", "        _spy(self, batch, done)\n        return done\n")
    (tree / TEXT).write_text((tree / TEXT).read_text() + SPY)


@pytest.mark.parametrize("case", CASES)
def test_texts_are_ars_and_the_buffer_holds_them(case: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, more = CASES[case]
    spied = changed(place, "spied", spy)
    seen = place / "seen.jsonl"
    seen.write_text("")
    monkeypatch.setenv("SPY", str(seen))
    found = run(place, drafter, {**CHAIN, **more}, tree=spied)
    texts = expected(place)
    assert found["texts"] == texts
    assert ("Retract requests" in found["said"]) == (case == "too few slots")
    whole = [[*prompt, *text] for prompt, text in zip(PROMPTS, texts, strict=True)]
    kept = [json.loads(line) for line in seen.read_text().splitlines()]
    # the last step may reach behind the end, and its tokens are no request's
    wrong = [tokens for tokens in kept if not any(tokens[: len(text)] == text[: len(tokens)] for text in whole)]
    assert len(kept) > 40 and not wrong
    assert max(len(tokens) for tokens in kept) > TOKENS


@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_chains_save_steps_and_come_from_the_text(drafter: str, place: Path) -> None:
    tree = {"speculative_tree_nodes": 16}
    plain, chains = run(place, drafter, tree), run(place, drafter, {**CHAIN, **tree})
    step = "            self._record(batch, done, anchors, done.accept_lens)\n"
    forgets = changed(place, "forgets", lambda tree: replace(tree / TEXT, step, ""))
    forgotten = run(place, drafter, {**CHAIN, **tree}, tree=forgets)
    assert plain["texts"] == chains["texts"] == forgotten["texts"] == expected(place)
    assert sum(chains["verify"]) < 0.9 * sum(plain["verify"])
    assert sum(chains["verify"]) < sum(forgotten["verify"])


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_captured_graphs_with_every_kernel_in_the_interpreter(drafter: str, most: int, place: Path) -> None:
    def change(tree: Path) -> None:
        allow_graphs(tree)
        allow_kernels(tree)
        for name in ("graft", "record"):
            replace(tree / f"sglang/srt/speculative/draft_tree/ngram/{name}.py", "if history.is_cuda:", "if True:")

    graphs = changed(place, "graphs", change)
    triton = {"attention_backend": "triton", "speculative_draft_attention_backend": "triton"}
    captured = {"disable_cuda_graph": False, "disable_prefill_cuda_graph": True, "cuda_graph_max_bs_decode": 4}
    tree = {"speculative_tree_nodes": 20, "speculative_tree_max_requests": most, **CHAIN}
    prompts = [(prompt * 9)[:18] for prompt in PROMPTS]  # n-grams that are there from the start
    plain = run(place, drafter, {**tree, "speculative_tree_max_requests": most}, prompts=prompts, tokens=8)
    found = run(place, drafter, {**triton, **captured, **tree}, tree=graphs, prompts=prompts, tokens=8)
    assert found["texts"] == plain["texts"] and found["verify"] == plain["verify"]
    assert found["said"].count("graph replayed") >= 2


def test_what_is_refused(place: Path) -> None:
    models = {"target": str(place / "models" / "target"), "drafter": str(place / "models" / "dflash2")}
    (place / "refusals.json").write_text(json.dumps({**models, "cases": list(REFUSED.values())}))
    argv = [str(PYTHON), str(Path(__file__).with_name("tree_refusals.py")), str(place / "refusals.json")]
    done = subprocess.run(argv, env=environment(place, "tree"), capture_output=True, text=True)
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("CASE ")]
    assert len(found) == len(REFUSED) + 3, done.stderr[-3000:]
    for message, said in zip(REFUSED, found, strict=False):
        assert message in said.get("refused", str(said))


def test_rows_that_do_not_see_their_chain_change_the_text(place: Path) -> None:
    faulty = changed(
        place,
        "faulty",
        lambda tree: replace(
            tree / "sglang/srt/speculative/draft_tree/ngram/reference.py",
            "            mask[row, above] = True\n",
            "",
        ),
    )
    found = run(place, "dspark", {"speculative_tree_nodes": 16, **CHAIN}, tree=faulty)
    assert found["texts"] != expected(place)
