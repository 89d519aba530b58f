"""Which calls of `rms_norm_gated` go to the kernel for few rows: the tree's functions, with recorders behind them."""

import ast
import importlib.util
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

FLA = Path.cwd() / "sglang/kernels/ops/attention/fla"
WANTED = ("_is_few_rows", "rms_norm_gated")


@pytest.fixture
def engine() -> dict[str, Any]:
    """The two functions, with recorders in place of both kernels: `calls` says who was called, with which tile."""
    path = FLA / "layernorm_gated_few_rows.py"
    spec = importlib.util.spec_from_file_location("few_rows_of_the_tree", path)
    assert spec is not None and spec.loader is not None
    real = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(real)
    calls: list[tuple[str, object]] = []

    def few(x: torch.Tensor, z: object, weight: object, eps: float, gate: str, rows: int, pdl: bool) -> torch.Tensor:
        calls.append(("few", rows))
        return x

    def general(x: torch.Tensor, *words: object, **named: object) -> tuple[torch.Tensor, None, None]:
        calls.append(("general", None))
        return x, None, None

    scope: dict[str, Any] = {
        "torch": torch, "FEW_ROWS": 12288, "is_arch_support_pdl": lambda: True,
        "device_context": lambda _: nullcontext(),
        "few_rows": SimpleNamespace(GATES=real.GATES, takes=real.takes, gated_rms_norm=few), "_is_npu": False,
        "calc_rows_per_block": lambda rows, device: 2, "_layer_norm_fwd": general, "calls": calls,
    }  # fmt: skip
    tree = ast.parse((FLA / "layernorm_gated.py").read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", "") in WANTED]
    assert len(tree.body) == len(WANTED)
    exec(compile(tree, "layernorm_gated.py", "exec"), scope)
    return scope


def call(engine: dict[str, Any], rows: int = 8, width: int = 128, dtype: Any = torch.bfloat16, **words: Any) -> Any:
    """One call; who took it, and the shape that came back."""
    shape = words.pop("shape", (rows, width))
    given: dict[str, Any] = {"x": torch.zeros(shape, dtype=dtype), "z": torch.zeros(shape, dtype=dtype)}
    given |= {"weight": torch.ones(width, dtype=dtype), "bias": None, "is_rms_norm": True, **words}
    engine["calls"].clear()
    out = engine["rms_norm_gated"](**given)
    assert out.shape == given["x"].shape and len(engine["calls"]) == 1
    return engine["calls"][0]


def test_few_rows_with_stocks_tile(engine: dict[str, Any]) -> None:
    for words in (
        {},
        {"rows": 12288},
        {"shape": (2, 4, 128)},
        {"activation": "sigmoid"},
        {"group_size": 128},
        {"width": 64},
    ):
        assert call(engine, **words) == ("few", 2), words
    assert call(engine, dtype=torch.float16) == ("few", 2)
    assert call(engine, z=torch.zeros(8, 512, dtype=torch.bfloat16)[:, :128]) == ("few", 2)


def test_everything_else_is_stocks(engine: dict[str, Any]) -> None:
    others: list[dict[str, Any]] = [
        {"rows": 12289}, {"is_rms_norm": False}, {"bias": torch.zeros(128)}, {"norm_before_gate": False},
        {"group_size": 64}, {"z": None}, {"width": 256}, {"width": 96}, {"dtype": torch.float32},
        {"activation": "none"}, {"z": torch.zeros(4, 2, 128, dtype=torch.bfloat16)},
        {"weight": torch.ones(256)[::2]},
    ]  # fmt: skip
    for words in others:
        assert call(engine, **words) == ("general", None), words


def test_it_can_be_switched_off(engine: dict[str, Any]) -> None:
    engine["FEW_ROWS"] = 0
    assert call(engine) == ("general", None)
    engine["FEW_ROWS"] = 12288
    engine["is_arch_support_pdl"] = lambda: False
    assert call(engine) == ("general", None)


def test_a_traced_call_is_stocks(engine: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert call(engine) == ("general", None)
