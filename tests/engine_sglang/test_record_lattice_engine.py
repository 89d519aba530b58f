"""`lattice record` with the real SGLang 0.5.20 on a CPU and drafters whose acceptance is known by construction.

Environment: see `test_true_engine.py`. The CUDA graph is what this does not reach;
`examples/05-sglang/record_lattice.py` does.
"""

from __future__ import annotations

import importlib
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from engine_sglang.drafters_on_cpu import allow_cpu
from engine_sglang.test_record_lattice import EXAMPLE, chain_accepts, read
from engine_sglang.test_true_engine import PYTHON
from engine_sglang.wheels import git
from support.cli import Cli

from specpilot_cli.artifacts.io import load
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies"),
]
FLAGS = (
    "--device cpu --attention-backend torch_native --speculative-draft-attention-backend torch_native "
    "--sampling-backend pytorch --grammar-backend none --dtype bfloat16 --skip-tokenizer-init --disable-radix-cache "
    "--max-total-tokens 4096 --context-length 512 --max-running-requests 4 --random-seed 0"
).split()
TOKENS, PROMPTS = 24, ([3, 5, 7], [11, 13], [17, 19, 23, 29], [31, 37], [41])
BLOCKS = {"DFLASH": ["--speculative-dflash-block-size", "8"], "DSPARK": ["--speculative-dspark-block-size", "7"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A folder with a recording worktree, the ring's checkpoints and requests; the ring."""
    pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("ring")
    wheel = os.environ.get("SGLANG_TEST_WHEEL")
    init_sglang(path / "stock", wheel=Path(wheel) if wheel else None)
    apply = ("memory", "apply", "record-lattice", "--stock", "stock", "--worktree", "record", "-o", "apply.json")
    Cli(path)(*apply).expect(0)
    allow_cpu(path / "record")
    git(path / "record", "-c", "user.name=t", "-c", "user.email=t@t", "commit", "-qam", "on a CPU")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        module = importlib.import_module("ring")
    ring = module.Ring(hidden=256, heads=4, kv_heads=2, head_dim=32)
    module.write(ring, path / "ring")
    rows = [{"id": f"q{n}", "split": "develop", "prompt": "", "input_ids": p} for n, p in enumerate(PROMPTS)]
    (path / "asked.jsonl").write_text("".join(json.dumps({**row, "max_new_tokens": TOKENS}) + "\n" for row in rows))
    write_stubs(path / "stubs")
    return path, ring


def deployment(path: Path, algorithm: str, mode: str) -> str:
    """Writes the deployment file; its name."""
    drafter = str(path / "ring" / ("dspark" if algorithm == "DSPARK" else "dflash2"))
    models = ["--model-path", str(path / "ring" / "target"), "--speculative-draft-model-path", drafter]
    args = [*models, "--speculative-algorithm", algorithm, *BLOCKS[algorithm], *FLAGS]
    name = algorithm.lower()
    (path / f"{name}.toml").write_text(
        f'id = "{name}"\nengine = "sglang-0.5.20"\nmodel = "ring"\ndrafter = "ring"\ngpu = "h200-sxm"\n'
        f'requests = "sglang-random"\nmode = "{mode}"\nserver_args = {json.dumps(args)}\n'
        f"[shape]\nconcurrency = 3\nmax_new_tokens = {TOKENS}\n"
    )
    return f"{name}.toml"


@pytest.mark.parametrize(("algorithm", "mode"), [("DFLASH", "offline"), ("DSPARK", "server")])
def test_every_step_of_the_real_engine_is_recorded_as_it_was(
    algorithm: str, mode: str, place: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ring = place
    monkeypatch.setenv("SPECPILOT_SGLANG_PYTHON", str(PYTHON))
    monkeypatch.setenv("SPECPILOT_SGLANG_PATH", str(path / "stubs"))
    name = deployment(path, algorithm, mode)
    Cli(path)("lattice", "record", "record", "-d", name, "--prompts", "./asked.jsonl", "-o", algorithm).expect(0)
    artifact = load(str(path / algorithm / "lattice.json"), "lattice").artifact
    assert artifact.complete and artifact.body.drafter == ("DFLASH2" if algorithm == "DFLASH" else "DSPARK")
    assert artifact.caveats == (), "no step was left out, and every request has the steps that the engine counted"
    steps = read(path / algorithm)
    assert Counter(text.id for text in steps.texts) == {f"q{n}": 1 for n in range(len(PROMPTS))}
    for text in steps.texts:
        output = text.tokens[text.prompt_tokens :].tolist()
        assert len(output) >= TOKENS and output == ring.text(PROMPTS[int(text.id[1:])][-1], len(output))
    assert steps.accepted.tolist() == [ring.accepted(int(anchor), 7) for anchor in steps.anchor]
    assert steps.accepted.tolist() == chain_accepts(steps).tolist()
    assert len(set(steps.accepted.tolist())) >= 3 and int(steps.accepted.max()) == 7, "blocks of many lengths"
    Cli(path)("replay", algorithm, "-b", "chain,best-first,oracle", "-n", "7", "-o", f"{algorithm}.json").expect(0)
    replay = load(str(path / f"{algorithm}.json"), "replay").artifact.body
    chain, tree, oracle = (curve.points[0].tau for curve in replay.curves)
    known = steps.take(steps.known())
    assert chain == pytest.approx(1 + known.accepted.mean()) and chain <= tree <= oracle
