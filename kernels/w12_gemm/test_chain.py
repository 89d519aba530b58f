"""`chain.py` without a GPU: its layers fit together, and its arms are what `bench.py` knows."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from specpilot_kernels._testing.inputs import activations, realistic_weight
from specpilot_kernels.w12_gemm import bench, chain


@pytest.mark.parametrize("model", chain.MODELS)
def test_every_product_feeds_the_next_small_kernel(model: str) -> None:
    shapes = chain.MODELS[model]
    outputs = [shapes[-1][0], *(n for n, _ in shapes)]
    # the small kernel before a product copies its first columns, so none may be missing
    assert all(k <= n for n, (_, k) in zip(outputs, shapes, strict=False))
    assert shapes[-1][0] == shapes[0][1], "layers follow each other"


def test_arms_name_modes_and_releases() -> None:
    for arm in chain.ARMS.split(","):
        _, mode, release = arm.split("/")
        assert mode in bench.MODES and release in chain.RELEASES


def test_an_arm_multiplies_with_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(chain.op, "find", lambda name, rows: SimpleNamespace(name=name, rows=32 if rows < 40 else 128))
    monkeypatch.setattr(chain.op, "matmul", lambda x, w, out, variant, launch: calls.append((w, variant, launch)))
    weight, y = torch.eye(3) * 2, torch.empty(2, 3)
    made = chain.products("wide4/early/end", [], [["first", "second"]], 8)  # type: ignore[list-item]
    assert made is not None
    made(torch.ones(2, 3), 0, 1, y)
    assert calls == [("second", SimpleNamespace(name="wide4", rows=32), bench.MODES["early"])]
    stock = chain.products("cublas/plain/alone", [[weight]], [], 8)
    assert stock is not None
    stock(torch.ones(2, 3), 0, 0, y)
    assert torch.equal(y, torch.full((2, 3), 2.0))
    assert chain.products("wide4/early/end", [], [], 40) is None, "mostly padding"


def outputs(scale: float, wrong: float = 0.0) -> torch.Tensor:
    """Of a chain of the 8B shapes, a sixteenth in size: products times `scale`, the last off by `wrong` of its norm.

    The small kernels undo the scale, after the rounding that it makes another one.
    """
    shapes = [(n // 16, k // 16) for n, k in chain.MODELS["8b"]]
    y = activations(8, shapes[0][1], "cpu", seed=8)
    for layer in range(chain.LAYERS):
        for i, (n, k) in enumerate(shapes):
            x = y.float()[:, :k] * torch.rsqrt(y.float().square().mean(1, keepdim=True) + 1e-6)
            weight = realistic_weight(n, k, "cpu", seed=layer * len(shapes) + i)
            y = (x.bfloat16().float() @ weight.float().T * scale).bfloat16()
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return y.double() / scale + wrong * noise / noise.norm() * y.double().norm() / scale


def test_chains_that_round_apart_are_not_far_and_a_wrong_output_is() -> None:
    count, exact = chain.LAYERS * len(chain.MODELS["8b"]), outputs(1.0)
    for scale in (1.1, 1.3, 1.7):
        distance = float((outputs(scale) - exact).norm() / exact.norm())
        assert 0.5 < distance / chain.far(count) < 0.9, scale
        assert float((outputs(scale, wrong=0.015) - exact).norm() / exact.norm()) > chain.far(count)


def test_what_was_measured_lies_where_roundings_put_it() -> None:
    path = Path(__file__).parent / "results" / "h200-2026-11-30-chain.json"
    found = [line["difference_from_cublas"] for line in json.loads(path.read_text())["chains"]]
    apart = [value for value in found if value]
    assert (f"{min(apart):.4f}", f"{max(apart):.4f}") == ("0.0101", "0.0113") and f"{chain.far(16):.4f}" == "0.0180"
    assert math.hypot(min(apart), 0.015) > chain.far(16)
