"""Traces: nesting, scopes, work from shapes. A real torch.profiler trace is made on the spot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.profiling.classify import classify, kernel_classes
from specpilot_cli.profiling.trace import Operator, moved_bytes, operators, product_work, read_events


def op(name: str, ts: float, dur: float, dims: list[Any] | None = None, cat: str = "cpu_op") -> dict[str, Any]:
    args = {"Input Dims": dims or [], "Input type": ["float"] * len(dims or [])}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": 1, "args": args}


def written(events: list[dict[str, Any]], folder: Path) -> Path:
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return path


def test_time_is_the_top_operators_and_work_the_leaves(tmp_path: Path) -> None:
    events = [
        op("phase:verify", 0, 100, cat="user_annotation"),
        op("aten::linear", 10, 20, [[9, 192], [576, 192], []]),
        op("aten::t", 11, 1, [[576, 192]]),
        op("aten::mm", 13, 15, [[9, 192], [192, 576]]),
        op("class:recurrent", 40, 40, cat="user_annotation"),
        op("aten::matmul", 45, 10, [[1, 4, 18, 32], [1, 4, 32, 48]]),
        op("aten::bmm", 46, 8, [[4, 18, 32], [4, 32, 48]]),
        op("aten::add", 60, 5, [[1, 4, 9, 48], [1, 4, 9, 48]]),
        op("aten::mul", 200, 5, [[8]]),
    ]
    found = list(operators(read_events(written(events, tmp_path))))
    assert [(o.name, o.phase, o.scope, o.time_ms) for o in found] == [
        ("aten::linear", "verify", "", 0.02),
        ("aten::matmul", "verify", "recurrent", 0.01),
        ("aten::add", "verify", "recurrent", 0.005),
    ]
    assert found[0].flop == 2 * 9 * 192 * 576
    assert found[0].bytes == 4 * (9 * 192 + 192 * 576 + 9 * 576)
    assert found[1].flop == 2 * 4 * 18 * 32 * 48
    classes = {c.name: c for c in kernel_classes(found, steps=2, inflation=2.0, vocab_size=1024)}
    assert set(classes) == {"gemm", "recurrent"}
    assert classes["gemm"].time_ms == pytest.approx(0.02 / 2 / 2)
    assert classes["recurrent"].calls == 1.0
    assert classes["recurrent"].bytes == (4 * 4 * (18 * 32 + 32 * 48 + 18 * 48) + 4 * 3 * 4 * 9 * 48) / 2


def test_the_head_is_the_product_with_the_vocabulary(tmp_path: Path) -> None:
    events = [
        op("phase:verify", 0, 100, cat="user_annotation"),
        op("aten::linear", 10, 20, [[9, 192], [1024, 192], []]),
    ]
    (head,) = operators(read_events(written(events, tmp_path)))
    assert classify(head, 1024) == "lm_head"
    assert classify(head, 1000) == "gemm"


@pytest.mark.parametrize(
    ("dims", "flop"),
    [
        ([[5], [3, 4], [4, 5]], 2 * 3 * 4 * 5),  # addmm: the bias comes first
        ([[7, 3, 4], [7, 4, 5]], 7 * 2 * 3 * 4 * 5),
        ([[3]], 0),
    ],
)
def test_product_work(dims: list[list[int]], flop: float) -> None:
    assert product_work({"Input Dims": dims, "Input type": ["float"] * len(dims)})[0] == flop


@pytest.mark.parametrize(
    ("name", "shapes", "items"),
    [
        ("aten::copy_", ((8, 4), (8, 4)), 2 * 32),
        ("aten::cat", ((8, 4), (2, 4)), 2 * 40),
        ("aten::embedding", ((1024, 128), (1, 9)), 2 * 9 * 128),  # nine rows, not the table
        ("aten::gather", ((8, 64), (8, 2)), 2 * 16),
        ("aten::add", ((8, 4), (4,)), 32 + 4 + 32),
        ("aten::index_put_", ((6, 1, 300, 2, 32), (6, 1, 9, 2, 32)), 2 * 6 * 9 * 64),
        ("aten::index", ((4096, 1, 16),), 0),  # its indices are not in the trace
        ("aten::item", (), 0),
    ],
)
def test_moved_bytes(name: str, shapes: tuple[tuple[int, ...], ...], items: int) -> None:
    assert moved_bytes(Operator(name, "verify", "", 1.0, 0.0, 0.0, shapes), item_bytes=2) == 2 * items


def test_a_real_trace(tmp_path: Path) -> None:
    import torch

    a, b = torch.randn(64, 32), torch.randn(128, 32)
    with torch.profiler.profile(record_shapes=True) as profiler, torch.profiler.record_function("phase:verify"):
        torch.nn.functional.linear(a, b)
        torch.softmax(a, -1)
    path = tmp_path / "real.json"
    profiler.export_chrome_trace(str(path))
    found = list(operators(read_events(path)))
    assert [o.name for o in found] == ["aten::linear", "aten::softmax"]
    assert found[0].flop == 2 * 64 * 32 * 128
    assert all(o.time_ms > 0 for o in found)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"traceEvents": 3}'])
def test_not_a_trace(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ExternalFailed, match="not a profiler trace"):
        read_events(path)
