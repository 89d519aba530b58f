"""The entry `certified-head`: its copies of kernels/, and greedy decoding in the real SGLang on a CPU.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`, or pip downloads 27 MB.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from memory.patched_engine import PYTHON, Trees, both_trees, run
from memory.w12_model import write_model

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.variants import load_variants, server_words

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "certified-head"
CSRC = "sglang/kernels/jit/csrc/gemm"
OURS = ("sglang/srt/layers/certified_head", f"{CSRC}/certified_head", f"{CSRC}/w12_gemm")
engine = pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies")
pytest.importorskip("torch")


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """The files that the delta adds, without the engine around them: they are whole in the patch."""
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    only = [f"--include={folder}/*" for folder in OURS]
    subprocess.run(["git", "apply", *only, str(ENTRY / "delta.patch")], cwd=tmp_path, check=True)
    return tmp_path


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


@engine
@pytest.mark.slow
def test_what_is_deferred_served_and_left_to_stock(trees: Trees) -> None:
    file = str(HERE / "certified_head_engine_checks.py")
    alone = ("-c", os.devnull, "--noconftest", "--import-mode=importlib", "-p", "no:cacheprovider")
    done = run(trees["patched"], "-m", "pytest", "-q", "-rs", *alone, file)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "skipped" not in done.stdout


SERVED = "certified head: greedy tokens come from the copy"

LEAST = {"sampled": 20.0}
TIE = 1e-3
"""Nats between the two best tokens from which on a choice has to be the same. No two different BF16 logits above 1 are
within the latter. Equal ones: stock on a CPU takes now the one, now the other (in 2 of 12 processes the same request
parted there, one of stock, one of the patched tree). A sampled token of e^-20 is not met."""
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


@engine
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
            assert values == pytest.approx(expected, rel=1e-6, abs=1e-5), (arm, kind)  # 6e-8 between two runs of stock


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


@engine
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_engine_s_own_jit_compiles_the_copies_for_sm_90a(trees: Trees, tmp_path: Path) -> None:
    nvcc = Path(str(shutil.which("nvcc"))).resolve()
    place = nvcc.parents[1] if (nvcc.parents[1] / "include" / "cuda_bf16.h").exists() else Path("/usr/local/cuda")
    env = {**trees["patched"], "CUDA_HOME": os.environ.get("CUDA_HOME", str(place))}
    (tmp_path / "jit.py").write_text(JIT)
    done = run(env, str(tmp_path / "jit.py"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("compiled ")
