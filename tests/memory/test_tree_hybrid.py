"""The entry `tree-hybrid`: its contracts, and the real SGLang 0.5.20 on a CPU: texts, states after rejections, faults.

Environment: see `test_gdn_path_verify.py`. Target and drafters are random (`tree_hybrid_model.py`), in float32, so that
a tree's text must be AR's token for token. Minutes.
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
from engine_sglang.tree_on_cpu import allow_kernels
from memory.patched_engine import PYTHON, entry_tree, needs_engine, needs_wheel
from memory.tree_hybrid_model import write_models
from memory.tree_hybrid_on_cpu import allow_hybrid_trees

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "tree-hybrid"
TREE = "sglang/srt/speculative/draft_tree"
SETTINGS: dict[str, Any] = {
    "device": "cpu", "attention_backend": "torch_native", "linear_attn_backend": "triton", "page_size": 1,
    "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "info", "skip_tokenizer_init": True,
    "disable_radix_cache": True, "min_free_slots_delay": 1, "context_length": 512, "max_running_requests": 4,
    "max_total_tokens": 4096, "random_seed": 0, "dtype": "float32", "disable_cuda_graph": True,
}  # fmt: skip
ALWAYS: dict[str, Any] = {"speculative_tree_max_requests": 0}
PROMPTS = [[3, 5, 7], [11, 13], [17, 19, 2, 9], [1, 7], [4], [8] * 7]
TOKENS = 32
PATH = {"SGLANG_GDN_COMMIT": "triton", "SGLANG_GDN_TREE": "path"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "dflash2": ("dflash2", {**ALWAYS, "speculative_tree_nodes": 16}),
    "dspark": ("dspark", {**ALWAYS, "speculative_tree_nodes": 32}),
    "ddtree": ("dspark", {**ALWAYS, "speculative_tree_nodes": 63, "speculative_tree_mode": "ddtree"}),
    "no overlap": ("dflash2", {**ALWAYS, "speculative_tree_nodes": 32, "disable_overlap_schedule": True}),
    "chains and trees": ("dspark", {"speculative_tree_nodes": 32, "speculative_tree_max_requests": 2}),
    "too few slots": ("dspark", {**ALWAYS, "speculative_tree_nodes": 30, "max_total_tokens": 300}),
}
STALE = "accepted_path=done.rows % self.rows", "accepted_path=self.kept.chain[:count]"
FAULTS: dict[str, Callable[[Path], None]] = {
    "a stale state after a rejection": lambda tree: replace(tree / TREE / "recurrent.py", *STALE),
    "the last accepted row is not committed": lambda tree: replace(
        tree / TREE / "recurrent.py", "last_correct_step_indices=last,", "last_correct_step_indices=last - 1,"
    ),
    "a sibling accepted as a child": lambda tree: replace(
        tree / TREE / "arrays.py", "(parents + 1 == at.view(-1, 1)) & ", "(parents + 1 <= at.view(-1, 1)) & "
    ),
    "rows verified as a chain": lambda tree: replace(
        tree / TREE / "verify.py", "self._recurrent.plant(tree.tree.parents)", "pass"
    ),
}


def test_what_it_touches_and_what_it_needs() -> None:
    entry = load_entry(ENTRY).entry
    assert entry.requires == ("gdn-path-verify", "tree-core") and entry.status == "unmeasured"
    names = [Path(path).relative_to(TREE).name for path in entry.delta.paths]
    assert names == ["chain.py", "recurrent.py", "settings.py", "verify.py"] and entry.delta.vary == ()


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the entry reproduces, in a folder of its own."""
    return entry_tree(tmp_path_factory.mktemp("hybrid"), "tree-hybrid")


@pytest.fixture(scope="module")
def place(entry: Path) -> Path:
    """A folder with that tree, the same for a CPU as `tree`, `stubs`, `models`, and AR's texts."""
    path = entry.parent
    shutil.copytree(entry, path / "tree", ignore=shutil.ignore_patterns(".git"))
    allow_hybrid_trees(path / "tree", plain=True)
    write_stubs(path / "stubs")
    write_models(path / "models")
    (path / "ar.json").write_text(json.dumps(run(path, "ar", {})["texts"]))
    return path


def run(path: Path, drafter: str, more: dict[str, Any], *, tree: str = "tree", **job: Any) -> dict[str, Any]:
    """What an engine gave; its log is `said`."""
    done = started(path, drafter, more, PATH, tree=tree, **job)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("FOUND "))
    return {**found, "said": done.stderr + done.stdout}


def started(
    path: Path, drafter: str, more: dict[str, Any], switches: dict[str, str], *, tree: str = "tree", **job: Any
) -> subprocess.CompletedProcess[str]:
    """An engine's process after its end."""
    settings = {**SETTINGS, "model_path": str(path / "models" / "target")}
    if drafter != "ar":
        settings |= {
            "speculative_draft_attention_backend": "torch_native",
            "speculative_draft_model_path": str(path / "models" / drafter),
            "speculative_algorithm": "DFLASH" if drafter == "dflash2" else "DSPARK",
            f"speculative_{drafter.removesuffix('2')}_block_size": 8 if drafter == "dflash2" else 7,
        }
    asked = {"prompts": PROMPTS, "tokens": TOKENS, **job}
    (path / "job.json").write_text(json.dumps({"settings": {**settings, **more}, **asked}))
    env = {name: value for name, value in os.environ.items() if name != "SGLANG_USE_CPU_ENGINE"}
    env |= {"PYTHONPATH": f"{path / tree}{os.pathsep}{path / 'stubs'}", "PYTHONDONTWRITEBYTECODE": "1"}
    env |= {"OMP_NUM_THREADS": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1", "SGLANG_MAMBA_CONV_DTYPE": "float32"}
    env |= {"SGLANG_JIT_CACHE_DIR": str(path / "jit")} | (switches if drafter != "ar" else {})
    argv = [str(PYTHON), str(HERE.parent / "engine_sglang" / "tree_engine.py"), str(path / "job.json")]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=500)


def expected(path: Path) -> list[list[int]]:
    """AR's texts."""
    found: list[list[int]] = json.loads((path / "ar.json").read_text())
    return found


@pytest.mark.slow
@needs_wheel
def test_contracts_hold_and_each_fault_breaks_one(entry: Path) -> None:
    assert contract_fault(ENTRY, entry) is None
    for old, new in (
        STALE,
        ("last_correct_step_indices=last,", "last_correct_step_indices=last - 1,"),
        ("mamba_steps_to_track=track,", "mamba_steps_to_track=last,"),
        ("self.kept.plant(parents)", "self.kept.plant(parents.clamp(max=0))"),
    ):
        file, kept = entry / TREE / "recurrent.py", (entry / TREE / "recurrent.py").read_text()
        replace(file, old, new)
        fault = str(contract_fault(ENTRY, entry))
        file.write_text(kept)
        assert "test_texts_and_states_are_ars_after_every_step" in fault, old


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("case", CASES)
def test_texts_are_ars(case: str, place: Path) -> None:
    """Six requests, four at a time; most steps reject drafts, and every later token depends on the states."""
    drafter, more = CASES[case]
    found = run(place, drafter, more)
    assert found["texts"] == expected(place)
    assert sum(found["correct"]) >= 5 and sum(found["verify"]) > 40, "drafts are accepted, and rejected"
    assert ("Retract requests" in found["said"]) == (case == "too few slots")
    assert ("tree-core is off: 4 requests" in found["said"]) == (case == "chains and trees")


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_changes_the_text(fault: str, place: Path) -> None:
    shutil.rmtree(place / "faulty", ignore_errors=True)
    shutil.copytree(place / "tree", place / "faulty")
    FAULTS[fault](place / "faulty")
    found = run(place, "dspark", {**ALWAYS, "speculative_tree_nodes": 32}, tree="faulty")
    assert found["texts"] != expected(place)


@pytest.mark.slow
@needs_engine
def test_prefixes_tracked_while_decoding_have_ars_states(place: Path) -> None:
    """A second turn takes up 64 tokens; their states were kept where an accepted path passed them."""
    cached = {
        **ALWAYS, "speculative_tree_nodes": 15, "disable_radix_cache": False, "max_mamba_cache_size": 24,
        "mamba_radix_cache_strategy": "extra_buffer", "mamba_track_interval": 16,
    }  # fmt: skip
    long = [[(7 * i + 3 * j) % 22 for j in range(50 + i)] for i in range(4)]
    again = {"turns": 2, "tokens": 20, "prompts": long}
    found, ar = run(place, "dspark", cached, **again), run(place, "ar", {}, **again)
    assert found["texts"] == ar["texts"] and len(ar["texts"]) == 8
    assert found["cached"] == [0] * 4 + [64] * 4 and max(ar["cached"]) == 0


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize("most", [0, 1])
def test_graphs_with_every_kernel_in_the_interpreter(most: int, place: Path, entry: Path) -> None:
    """The runners' static buffers, padding and metadata, and all kernels of a step; with 1, chains for two requests."""
    if not (place / "graphs").exists():
        shutil.copytree(entry, place / "graphs", ignore=shutil.ignore_patterns(".git"))
        allow_hybrid_trees(place / "graphs", plain=False)
        allow_graphs(place / "graphs")
        allow_kernels(place / "graphs")
    more = {
        "attention_backend": "triton", "speculative_draft_attention_backend": "triton", "max_running_requests": 2,
        "disable_cuda_graph": False, "disable_prefill_cuda_graph": True, "cuda_graph_max_bs_decode": 2,
        "speculative_tree_nodes": 11, "speculative_tree_max_requests": most,
    }  # fmt: skip
    found = run(place, "dspark", more, tree="graphs", tokens=6, prompts=PROMPTS[:3])
    assert found["texts"] == [text[:6] for text in expected(place)[:3]]
    assert "Capture target verify CPU graph begin. backend=full, num_tokens_per_req=12" in found["said"]
    assert ("Chains of 8 rows: graphs for [2] requests" in found["said"]) == (most == 1)
    assert "graph replayed" in found["said"]


@pytest.mark.slow
@needs_engine
@pytest.mark.parametrize(
    ("nodes", "switches", "message"),
    [
        (32, {}, "set SGLANG_GDN_COMMIT=triton and SGLANG_GDN_TREE=path"),
        (64, PATH, "must be from 1 to 63 for a target with recurrent layers, got 64"),
    ],
)
def test_what_is_refused(nodes: int, switches: dict[str, str], message: str, place: Path) -> None:
    done = started(place, "dspark", {**ALWAYS, "speculative_tree_nodes": nodes}, switches)
    assert "FOUND" not in done.stdout and message in done.stderr
