"""`chain.py` without a GPU: its layers fit together, and its arms are what `bench.py` knows."""

from types import SimpleNamespace

import pytest
import torch
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
