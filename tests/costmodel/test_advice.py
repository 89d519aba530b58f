"""Advice in words: each sentence's figure is derived here from those of the profile."""

from __future__ import annotations

from typing import Any

import pytest
from support.samples import SHA, TREE, profile_body

from specpilot_cli.artifacts.ceiling import CeilingBody, FloorSettings
from specpilot_cli.artifacts.deployment import DeploymentRecord, ServerRecord, Shape
from specpilot_cli.artifacts.profile import KernelClass
from specpilot_cli.costmodel.advice import is_product
from specpilot_cli.costmodel.ceiling import compute


def sglang(
    classes: tuple[KernelClass, ...] | None = None, info: dict[str, Any] | None = None, **changes: Any
) -> CeilingBody:
    """The ceiling of the sample profile as if SGLang had made it: step 10 ms, 8 ms of it in kernels, AR 5 ms."""
    deployment = DeploymentRecord(
        id="d", engine="sglang-0.5.20", model="m", drafter="x", gpu="h200-sxm",
        shape=Shape(concurrency=1, max_new_tokens=8), server_args=(), file_sha256=SHA,
    )  # fmt: skip
    server = ServerRecord(tree=TREE, base_tree=TREE, argv=(), info=info or {})
    changes |= {"classes": classes} if classes else {}
    return compute(profile_body(deployment=deployment, server=server, **changes), FloorSettings())[0]


def line(body: CeilingBody, text: str) -> str:
    """The one sentence that has `text`."""
    (found,) = [line for line in body.advice if text in line]
    return found


def test_twelve_bits_for_the_share_of_waiting_products() -> None:
    # verify/gemm: 6 of 10 ms, bound by bytes → 60 %; 1 / (1 - 0.6 · (1 - 12.02/16)) = 1 / (1 - 0.6 · 0.24875) = 1.1754
    assert line(sglang(), "weights").startswith("weights are 60 % of the step")
    assert "at most 1.18× here" in line(sglang(), "weights")


def test_the_issues_example_share() -> None:
    # 76 %: 1 / (1 - 0.76 · 0.24875) = 1 / 0.81095 = 1.233
    gemm = KernelClass(phase="verify", name="gemm_gate_up", time_ms=7.6, calls=1, flop=0.0, bytes=1.8e6)
    assert "at most 1.23× here" in line(sglang((gemm,)), "weights are 76 %")


@pytest.mark.parametrize("info", [{"quantization": "fp8"}, {"dtype": "float16"}])
def test_nothing_is_said_of_weights_that_are_not_bf16(info: dict[str, Any]) -> None:
    assert not [text for text in sglang(info=info).advice if "weights" in text]
    assert not [text for text in compute(profile_body(), FloorSettings())[0].advice if "weights" in text]


def test_products_bound_by_arithmetic_save_nothing() -> None:
    # 1 % of the bytes' floor would be 0.01 ms; 1e9 FLOP at 0.6e9 FLOP/s are 1667 ms: bound by flop
    busy = KernelClass(phase="verify", name="gemm", time_ms=6.0, calls=1, flop=1e9, bytes=9e3)
    assert not [text for text in sglang((busy,)).advice if "weights" in text]


def test_the_largest_factor_comes_first() -> None:
    body = sglang()
    # kernels 2.0 > acceptance 1.5 > outside 1.25; gemm stands 4 ms above its floor: 10 / (10 - 4) = 1.67
    assert body.advice[0] == (
        "verify/gemm (60 % of the step) takes 3.0 times its floor by bytes; at its floor the step would be 1.67× faster"
    )
    assert body.advice[1] == "another choice of drafts is worth at most 1.50× (best τ 6.00; now 4.00)"
    assert "2 of 10 ms a step belong to no kernel" in body.advice[2] and "1.25× faster" in body.advice[2]


def test_a_loss_is_said_first_with_what_it_would_take() -> None:
    # c = 2 at τ = 4 pays; with AR at 1 ms the same step has c = 10: speed-up 0.4, floors 4 ms / 1 ms = 4
    slow = profile_body().autoregressive.model_copy(update={"step_ms": 1.0})
    body = sglang(autoregressive=slow, relative_cost=10.0, speedup_over_ar=0.4)
    assert body.advice[0] == (
        "speculation loses here (0.40× AR): at this step it pays above τ = 10.00, with every class at its floor and"
        " nothing outside above τ = 4.00"
    )


@pytest.mark.parametrize(("name", "yes"), [("gemm", True), ("gemm_qkv", True), ("lm_head", True), ("attention", False)])
def test_products(name: str, yes: bool) -> None:
    assert is_product(name) is yes
