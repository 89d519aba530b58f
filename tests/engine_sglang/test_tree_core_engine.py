"""The entry `tree-core` in the real SGLang 0.5.20 on a CPU: texts, counters, the drafter's cache, graphs, faults.

Environment: see `test_true_engine.py`. Target and drafters are random (`tree_model.py`), in float32, so that a tree's
text must be AR's token for token. Minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engine_sglang.drafters_on_cpu import replace
from engine_sglang.graphs_on_cpu import allow_graphs
from engine_sglang.test_true_engine import PYTHON
from engine_sglang.tree_model import write_models
from engine_sglang.tree_on_cpu import allow_kernels, allow_trees

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.room import open_room

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies"),
]
SETTINGS: dict[str, Any] = {
    "device": "cpu", "attention_backend": "torch_native", "speculative_draft_attention_backend": "torch_native",
    "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "info", "skip_tokenizer_init": True,
    "disable_radix_cache": True, "min_free_slots_delay": 1, "context_length": 512, "max_running_requests": 4,
    "max_total_tokens": 4096, "random_seed": 0, "dtype": "float32", "disable_cuda_graph": True,
}  # fmt: skip
PROMPTS = [[3, 5, 7], [11, 13], [17, 19, 2, 9], [1, 7], [4], [8] * 7]
TOKENS = 40
TREE = "sglang/srt/speculative/draft_tree/"
SEEN = "tree.mask.view(torch.uint8).reshape(-1)"
CASES = {
    "dflash2": ("dflash2", {"speculative_tree_nodes": 24}),
    "dspark": ("dspark", {"speculative_tree_nodes": 40}),
    "ddtree": ("dflash2", {"speculative_tree_nodes": 63, "speculative_tree_mode": "ddtree"}),
    "pages and prefixes": ("dspark", {"speculative_tree_nodes": 16, "page_size": 4, "disable_radix_cache": False}),
    "no overlap": ("dflash2", {"speculative_tree_nodes": 16, "disable_overlap_schedule": True}),
    "mixed chunks": ("dflash2", {"speculative_tree_nodes": 30, "enable_mixed_chunk": True, "chunked_prefill_size": 8}),
    "beam": ("dflash2", {"speculative_tree_nodes": 24, "speculative_tree_mode": "beam"}),
    "beam of 8": (
        "dspark",
        {"speculative_tree_nodes": 40, "speculative_tree_mode": "beam", "speculative_tree_beam": 8},
    ),
    "too few slots": ("dflash2", {"speculative_tree_nodes": 30, "max_total_tokens": 330}),
}
FAULTS: dict[str, Callable[[Path], None]] = {
    "accepted rows stay where they are": lambda tree: replace(
        tree / TREE / "verify.py", "        self._mover.move(done.source, slots, done.commit_lens)\n", ""
    ),
    "siblings see each other": lambda tree: replace(tree / TREE / "rows.py", SEEN, f"torch.ones_like({SEEN})"),
    "positions by row": lambda tree: replace(
        tree / TREE / "arrays.py", "pad(depths.long(), (1, 0))", "pad(torch.arange(1, depths.shape[1] + 1), (1, 0))"
    ),
    "a sibling accepted as a child": lambda tree: replace(
        tree / TREE / "arrays.py", "(parents + 1 == at.view(-1, 1)) & ", "(parents + 1 <= at.view(-1, 1)) & "
    ),
}


DFLASH = ["--speculative-algorithm", "DFLASH", "--attention-backend", "torch_native"]
NODES = ["--speculative-tree-nodes", "32"]
REFUSED: dict[str, list[str]] = {
    "must be from 1 to 255, got 0": [*DFLASH, "--speculative-tree-nodes", "0"],
    "must be one of best-first, ddtree, beam, got worst": [*DFLASH, *NODES, "--speculative-tree-mode", "worst"],
    "must be one of 1, 2, 4, 8, 16, got 3": [
        *DFLASH,
        *NODES,
        "--speculative-tree-mode",
        "beam",
        "--speculative-tree-beam",
        "3",
    ],
    "must be at least 0, got -1": [*DFLASH, *NODES, "--speculative-tree-max-requests", "-1"],
    "fewer rows than the chain of 8": [*DFLASH, "--speculative-tree-nodes", "6"],
    "must be from 1 to 128, got 129": [*DFLASH, *NODES, "--speculative-tree-candidates", "129"],
    "needs tp_size 1, got 2": [*DFLASH, *NODES, "--tp-size", "2"],
    "needs --attention-backend": [*NODES, "--speculative-algorithm", "DFLASH", "--attention-backend", "flashinfer"],
    "does not go with --speculative-draft-window-size": [*DFLASH, *NODES, "--speculative-draft-window-size", "64"],
    "does not go with --speculative-use-rejection-sampling": [*DFLASH, *NODES, "--speculative-use-rejection-sampling"],
    "does not go with --enable-two-batch-overlap": [*DFLASH, *NODES, "--enable-two-batch-overlap"],
    "unset SGLANG_SIMULATE_ACC_LEN": [*DFLASH, *NODES, "@env:SGLANG_SIMULATE_ACC_LEN=3"],
    "needs SGLANG_RAGGED_VERIFY_MODE=static": [*DFLASH, *NODES, "@env:SGLANG_RAGGED_VERIFY_MODE=compact"],
    "needs --speculative-algorithm DFLASH or DSPARK": [*NODES, "--speculative-algorithm", "NGRAM"],
}
SERVED = {  # flags, then num_draft_tokens, DFLASH's block, DSPARK's block
    "tree": ([*DFLASH, *NODES, "--speculative-dflash-block-size", "16"], 33, 16, None),
    "drafter's own block": ([*DFLASH, *NODES], 33, 8, None),
    "dspark": (
        [*NODES, *DFLASH[2:], "--speculative-algorithm", "DSPARK", "--speculative-dspark-block-size", "5"],
        33,
        None,
        5,
    ),
    "stock": ([*DFLASH, "--speculative-dflash-block-size", "16"], 16, 16, None),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the patched worktree `tree`, `stubs`, `models`, and AR's texts."""
    return prepare(tmp_path_factory.mktemp("trees"), "tree-core")


def prepare(path: Path, *entries: str) -> Path:
    """The folder with the worktree of these entries."""
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    stock, _ = init_sglang(path / "stock", wheel=Path(wheel) if wheel else None)
    made = plan(open_room(None), entries, stock.path)
    assert made.reproduces is not False, made.first_difference
    materialise(made, path / "tree")
    allow_trees(path / "tree")
    write_stubs(path / "stubs")
    write_models(path / "models")
    (path / "ar.json").write_text(json.dumps(run(path, "ar", {})["texts"]))
    return path


def run(path: Path, drafter: str, more: dict[str, Any], *, tree: str = "tree", **job: Any) -> dict[str, Any]:
    """What an engine gave; its log is `said`."""
    settings = {**SETTINGS, "model_path": str(path / "models" / "target")}
    if "speculative_tree_nodes" in more:
        settings["speculative_tree_max_requests"] = 0  # the region holds no CPU
    if drafter == "ar":
        del settings["speculative_draft_attention_backend"]
    else:
        settings |= {
            "speculative_draft_model_path": str(path / "models" / drafter),
            "speculative_algorithm": "DFLASH" if drafter == "dflash2" else "DSPARK",
            f"speculative_{drafter.removesuffix('2')}_block_size": 8 if drafter == "dflash2" else 7,
        }
    asked = {"prompts": PROMPTS, "tokens": TOKENS, **job}
    (path / "job.json").write_text(json.dumps({"settings": {**settings, **more}, **asked}))
    argv = [str(PYTHON), str(Path(__file__).with_name("tree_engine.py")), str(path / "job.json")]
    done = subprocess.run(argv, env=environment(path, tree), capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return {**found, "said": done.stderr + done.stdout}


def environment(path: Path, tree: str) -> dict[str, str]:
    """Of a process that runs a worktree."""
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    env |= {"PYTHONPATH": f"{path / tree}{os.pathsep}{path / 'stubs'}", "PYTHONDONTWRITEBYTECODE": "1"}
    return env | {"OMP_NUM_THREADS": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}


def expected(path: Path) -> list[list[int]]:
    """AR's texts."""
    found: list[list[int]] = json.loads((path / "ar.json").read_text())
    return found


def test_what_is_refused_and_what_the_flags_mean(place: Path) -> None:
    cases = [*REFUSED.values(), *(flags for flags, *_ in SERVED.values())]
    models = {"target": str(place / "models" / "target"), "drafter": str(place / "models" / "dflash2")}
    (place / "refusals.json").write_text(json.dumps({**models, "cases": cases}))
    script = str(Path(__file__).with_name("tree_refusals.py"))
    argv = [str(PYTHON), script, str(place / "refusals.json")]
    done = subprocess.run(argv, env=environment(place, "tree"), capture_output=True, text=True)
    found = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("CASE ")]
    assert len(found) == len(cases) + 3, done.stderr[-3000:]
    for message, said in zip(REFUSED, found, strict=False):
        assert message in said.get("refused", str(said))
    for (_, verify, dflash, dspark), said in zip(SERVED.values(), found[len(REFUSED) :], strict=False):
        assert said["speculative_num_draft_tokens"] == verify and said["speculative_eagle_topk"] == 1
        assert [said["speculative_dflash_block_size"], said["speculative_dspark_block_size"]] == [dflash, dspark]
    hybrid, latent, dense = found[-3:]
    assert "recurrent layers" in hybrid["refused"] and "MLA" in latent["refused"] and dense == {"served": "MHA"}


@pytest.mark.parametrize("case", CASES)
def test_texts_are_ars_and_counters_count_them(case: str, place: Path) -> None:
    drafter, more = CASES[case]
    found = run(place, drafter, more)
    assert found["texts"] == expected(place)
    for verify, correct in zip(found["verify"], found["correct"], strict=True):
        # the first token is prefill's, and so is the next one after a retraction; a mixed step brings one token that no
        # verify step did; the last step may reach behind the end
        uncounted = case in ("mixed chunks", "too few slots")
        assert verify + correct < TOKENS + 7 and (uncounted or verify + correct >= TOKENS - 1)
    assert sum(found["correct"]) >= 10, "some drafts are right"
    assert ("Retract requests" in found["said"]) == (case == "too few slots")


@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_the_drafters_cache_is_what_a_fresh_request_has(drafter: str, place: Path) -> None:
    found = run(place, drafter, {"speculative_tree_nodes": 48}, streamed=[2, 3])
    assert len(found["steps"]) > 40 and max(kept for kept, _ in found["steps"]) > 2
    assert [pair for pair in found["steps"] if pair[0] != pair[1]] == []


@pytest.mark.parametrize("most", [0, 2])
@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_captured_graphs_with_every_kernel_in_the_interpreter(drafter: str, most: int, place: Path) -> None:
    if not (place / "graphs").exists():
        shutil.copytree(place / "tree", place / "graphs")
        allow_graphs(place / "graphs")
        allow_kernels(place / "graphs")
    triton = {"attention_backend": "triton", "speculative_draft_attention_backend": "triton"}
    graphs = {"disable_cuda_graph": False, "disable_prefill_cuda_graph": True, "cuda_graph_max_bs_decode": 4}
    tree = {"speculative_tree_nodes": 20, "speculative_tree_max_requests": most}
    found = run(place, drafter, {**triton, **graphs, **tree}, tree="graphs", tokens=6)
    assert found["texts"] == [text[:6] for text in expected(place)] and sum(found["correct"]) > 0
    width = 8 if drafter == "dflash2" else 7
    assert "Capture target verify CPU graph begin. backend=full, num_tokens_per_req=21" in found["said"]
    assert f"Capture draft verify CPU graph begin. backend=full, num_tokens_per_req={width}" in found["said"]
    # with `most` four requests verify chains, the last two trees
    assert found["said"].count("graph replayed") >= (3 if most else 2), "the target's of either width and the draft's"
    assert ("Chains of 8 rows: graphs for [3, 4] requests" in found["said"]) == bool(most)


@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_outside_of_the_region_a_step_is_stocks_chain(drafter: str, place: Path) -> None:
    chain = run(place, drafter, {})
    tree = {"speculative_tree_nodes": 40}
    outside = run(place, drafter, {**tree, "speculative_tree_max_requests": None})
    assert outside["texts"] == chain["texts"] == expected(place)
    assert (outside["verify"], outside["correct"]) == (chain["verify"], chain["correct"])
    assert outside["said"].count("tree-core is off: devices cpu not in sm90") == 1


@pytest.mark.parametrize("drafter", ["dflash2", "dspark"])
def test_a_batch_that_shrinks_comes_back_to_trees(drafter: str, place: Path) -> None:
    # four at a time: the first four end before two are left, and the last one's drafts are right
    order = [0, 1, 3, 4, 5, 2]
    prompts, texts = [PROMPTS[n] for n in order], [expected(place)[n] for n in order]
    chain = run(place, drafter, {}, prompts=prompts)
    mixed = run(place, drafter, {"speculative_tree_nodes": 40, "speculative_tree_max_requests": 2}, prompts=prompts)
    assert mixed["texts"] == chain["texts"] == texts
    assert mixed["verify"][:4] == chain["verify"][:4] and sum(mixed["verify"][4:]) < sum(chain["verify"][4:])
    assert mixed["said"].count("tree-core is off: 4 requests are more than the 2") == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_changes_the_text(fault: str, place: Path) -> None:
    shutil.rmtree(place / "faulty", ignore_errors=True)
    shutil.copytree(place / "tree", place / "faulty")
    FAULTS[fault](place / "faulty")
    found = run(place, "dspark", {"speculative_tree_nodes": 63}, tree="faulty")
    assert found["texts"] != expected(place)
