"""Work from shapes, against sums done by hand, and the deployments' shapes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable
from specpilot_cli.core.paths import share_dir
from specpilot_cli.deployment import load_deployment, load_device, load_requests
from specpilot_cli.profiling.model_shape import draft_shape, model_shape
from specpilot_cli.profiling.model_work import Load, draft_products, draft_work, gdn_work, target_products, target_work
from specpilot_cli.profiling.sglang_checks import caveats, require_graphs
from specpilot_cli.profiling.sglang_run import models_of

SHAPES = share_dir("profiles") / "deployments" / "shapes"
DEPLOYMENTS = sorted(p.stem for p in (share_dir("profiles") / "deployments").glob("*__h200-sxm__*.toml"))


def config(name: str) -> dict[str, Any]:
    """A committed shape."""
    found: dict[str, Any] = json.loads((SHAPES / name / "config.json").read_text())
    return found


def test_the_hybrid_targets_weights() -> None:
    """The engine reports 50.1 (GiB) of weights for this shape: the products' and the embedding table's."""
    products = target_products(model_shape(config("hyb27b")))
    weights = 2 * sum(p.outputs * p.inputs for p in products)
    assert len(products) == 4 * 64 + 48 + 1  # as many as a trace of the engine has
    assert weights + 2 * 248320 * 5120 == pytest.approx(50.1 * 2**30, rel=1e-3)


def test_the_dense_targets_products() -> None:
    shape = model_shape(config("dense8b"))
    layer = target_products(shape)[:4]
    assert [(p.outputs, p.inputs) for p in layer] == [(6144, 4096), (4096, 4096), (24576, 4096), (4096, 12288)]
    assert target_products(shape)[-1].outputs == 151936
    work = target_work(shape, Load(batch=2, rows=32, kv_tokens=400, pairs=6400))
    assert work["gemm_gate_up"].flop == 36 * 2 * 32 * 24576 * 4096
    assert work["attention"].flop == 36 * 4 * 6400 * 32 * 128
    assert work["attention"].bytes == 36 * (2 * 400 * 8 * 128 * 2 + 2 * 32 * 32 * 128 * 2)


def test_the_recurrent_state_is_read_once_and_snapshot_by_row() -> None:
    shape = model_shape(config("hyb27b"))
    assert shape.gdn_state * shape.gdn_state_bytes == 3 * 2**20
    verify = gdn_work(shape, Load(1, 8, 100, 800))
    decode = gdn_work(shape, Load(1, 1, 100, 100, verifies=False))
    grown = verify["gdn_recurrence"].bytes - decode["gdn_recurrence"].bytes
    per_row = 2 * (shape.gdn_channels + 48 * 128)
    assert grown == 48 * (7 * 3 * 2**20 + 7 * per_row)
    assert "gdn_commit" in verify and "gdn_commit" not in decode


def test_drafters() -> None:
    load = Load(1, 8, 100, 800)
    dflash2, dspark = draft_shape(config("hyb27b-dflash2")), draft_shape(config("hyb27b-dspark"))
    assert (dflash2.block, dflash2.features, dflash2.selector_top_k, dspark.markov_rank) == (8, 5, 16, 256)
    assert {"gemm_conv_kernel", "gemm_selector", "selector"} <= set(draft_work(dflash2, load))
    assert {"gemm_markov", "sampling"} <= set(draft_work(dspark, load))
    assert draft_work(dflash2, load)["lm_head"].flop == 2 * 7 * 248320 * 5120
    assert len(draft_products(dflash2)) == 5 * 6 + 3  # as many as a trace has
    assert len(draft_products(dspark)) == 5 * 4 + 1 + 7
    assert draft_work(dspark, load)["gemm_markov"].flop == 7 * 2 * 248320 * 256
    for draft in (dflash2, dspark):
        assert {product.name for product in draft_products(draft)} <= set(draft_work(draft, load))


@pytest.mark.parametrize("change", [{"num_experts": 8}, {"hidden_size": None}, {"linear_key_head_dim": None}])
def test_shapes_that_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InputUnusable):
        model_shape({**config("hyb27b"), **change})


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_deployments_are_complete(name: str) -> None:
    deployment = load_deployment(name)
    models = models_of(deployment.record.server_args)
    assert (models.draft is None) == (deployment.record.drafter == "none")
    if models.draft is not None:
        assert models.draft.body.hidden == models.target.hidden and models.draft.body.vocab == models.target.vocab
    assert load_device(deployment.record.gpu) is not None
    requests = load_requests(deployment.requests, "develop").requests
    assert len(requests) >= 2 * deployment.record.shape.concurrency
    assert max(max(r.input_ids) for r in requests) < models.target.vocab


def test_there_are_deployments_and_sealed_requests() -> None:
    assert len(DEPLOYMENTS) == 8
    assert len(load_requests("sglang-random", "sealed").requests) == 16


@pytest.mark.parametrize("name, tokens, each", [("sglang-random", 128, 96), ("sglang-random-64", 64, 256)])
def test_random_prompts_are_those_that_the_script_writes(name: str, tokens: int, each: int) -> None:
    room = share_dir("profiles") / "requests"
    words = [sys.executable, str(room / "make_random.py"), name, str(tokens), str(each)]
    made = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = (room / f"{name}.jsonl").read_text().splitlines()
    assert [json.loads(line)["input_ids"] for line in kept] == [json.loads(line)["input_ids"] for line in made][
        : len(kept)
    ]


def test_a_model_that_is_not_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="not here"):
        models_of(("--model-path", "Qwen/Qwen3-8B"))
    with pytest.raises(InputUnusable, match="not here"):
        models_of(("--model-path", "@shape:dense8b", "--speculative-draft-model-path", str(tmp_path)))


GPU = {"device": "cuda", "cuda_graph_config": {"decode": {"backend": "full", "max_bs": 8}}, "disable_radix_cache": True}


@pytest.mark.parametrize(
    "change",
    [{"device": "cpu"}, {"disable_cuda_graph": True}, {"cuda_graph_config": {"decode": {"backend": "disabled"}}}],
)
def test_servers_that_are_not_profiled(change: dict[str, Any]) -> None:
    require_graphs(GPU)
    with pytest.raises(EnvironmentUnusable):
        require_graphs({**GPU, **change})


def test_caveats() -> None:
    assert caveats(GPU, 8) == ()
    assert "batch 8" in caveats(GPU, 9)[0]
    simulated = {"specpilot_launch": {"sglang_settings": {"SGLANG_SIMULATE_ACC_LEN": "4"}}, "load_format": "dummy"}
    found = caveats({**GPU, **simulated, "disable_radix_cache": False, "speculative_algorithm": "DFLASH"}, 1)
    assert len(found) == 4
