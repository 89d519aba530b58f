"""The arithmetic of `examples/tree`: counters to rates, a trace to kernel times, a measurement against a replay."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specpilot_cli.artifacts.replay_lattice import LatticeBody
from specpilot_cli.replay.lattice_file import LatticeReader, LatticeWriter
from specpilot_cli.replay.steps import Steps, Text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tree"))

import compare
import measure
import robust
import until_end

STEPS = {1: 4, 2: 10}  # verify steps of the request whose prompt has so many tokens


class Engine:
    """Answers with 3 tokens a step, in a clock that a step of a batch moves by 2 s and a first token by 5 s."""

    def __init__(self) -> None:
        self.now = 0.0

    def generate(self, input_ids: list[list[int]], sampling_params: dict[str, Any]) -> list[dict[str, Any]]:
        tokens = sampling_params["max_new_tokens"]
        steps = [0 if tokens == 1 else STEPS[len(ids)] for ids in input_ids]
        self.now += 5.0 + 2.0 * max(steps)
        return [
            {
                "output_ids": [7] * (1 + 3 * taken),
                "meta_info": {
                    "completion_tokens": 1 + 3 * taken,
                    "spec_verify_ct": taken,
                    "spec_num_correct_drafts": 2 * taken,
                },
            }
            for taken in steps
        ]


def test_a_batchs_steps_are_its_longest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    monkeypatch.setattr(measure.time, "perf_counter", lambda: engine.now)
    measurement = measure.Measurement(engine, [[1], [1, 1], [1], [1]], 64, [])
    found = measurement.all([1, 2, 24])
    assert "24" not in found, "four requests are no 24"
    assert found["1"]["step_ms"] == found["2"]["step_ms"] == 2000.0
    assert (found["1"]["verify_steps"], found["1"]["tau"], found["1"]["tokens"]) == (22, 3.0, 70)
    assert found["1"]["decode_tok_s"] == 66 / 44 and found["2"]["decode_tok_s"] == round(66 / 28, 1)
    assert found["whole"]["tau"] == 3.0 and len(found["texts"]) == 4


def test_kernel_times_are_sums_a_step(tmp_path: Path) -> None:
    def event(kind: str, name: str, took: float) -> dict[str, Any]:
        return {"cat": kind, "name": name, "dur": took}

    events = [event("kernel", "gemm", 30.0), event("kernel", "gemm", 10.0), event("gpu_memcpy", "copy", 4.0)]
    (tmp_path / "a").mkdir()
    trace = {"traceEvents": [*events, event("cpu_op", "aten::mm", 99.0), {"ph": "M", "name": "process"}]}
    (tmp_path / "a" / "1.trace.json.gz").write_bytes(gzip.compress(json.dumps(trace).encode()))
    found = measure.kernels(tmp_path)
    assert found == {"gemm": (40.0, 2), "copy": (4.0, 1)}
    step = measure.per_step(found, {}, 4)
    assert step["gpu_us"] == 11.0 and step["launches"] == 0.8
    assert step["kernels"] == [(10.0, 0.5, "gemm"), (1.0, 0.25, "copy")]
    behind = measure.per_step(found, {"gemm": (30.0, 1), "copy": (4.0, 1), "prefill": (9.0, 1)}, 1)
    assert behind["kernels"] == [(10.0, 1.0, "gemm")], "what prefill alone launches is no part of a step"


def measured(tau: float, step: float, rate: float) -> dict[str, Any]:
    at = {"tau": tau, "step_ms": step, "decode_tok_s": rate, "tok_s": rate - 100}
    return {"1": at, "whole": {"tau": tau, "verify_steps": 300}}


def test_a_measurement_against_a_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    systems = {
        "ar": {"1": {"tau": None, "step_ms": 5.0, "decode_tok_s": 200.0}, "whole": {"tau": None}},
        "dflash2@8": measured(2.0, 5.0, 400.0),
        "dflash2@8+32": measured(2.8, 5.25, 530.0),
        "dflash2@8+32d": measured(2.5, 5.25, 480.0),
        "dspark@7": measured(2.0, 5.0, 400.0),
        "dflash2@8+16": {"fault": "no"},
    }
    (tmp_path / "tree.json").write_text(json.dumps({"systems": systems}))

    def curve(builder: str, positions: int, *points: tuple[int, float]) -> dict[str, Any]:
        rows = [
            {"nodes": n, "tau": t, "low": t - 0.1, "high": t + 0.1, "steps": 100, "position_rate": [0.5, 0.5]}
            for n, t in points
        ]
        return {"builder": builder, "positions": positions, "points": rows}

    curves = [
        curve("chain", 7, (16, 2.02)),
        curve("best-first", 15, (32, 9.0)),
        curve("best-first", 7, (16, 2.4), (32, 2.8)),
        curve("ddtree", 7, (32, 2.6)),
    ]
    (tmp_path / "replay.json").write_text(json.dumps({"body": {"curves": curves}}))
    assert compare.read("dspark@7+32b") == ("dspark", 7, 32, "beam") and compare.read("ar") is None
    assert compare.read("dspark@7+32~8") is None, "its steps are of two kinds"
    assert compare.read("dflash2@8+32n7") == ("dflash2", 7, 32, "suffix")
    assert compare.read("dspark@16+32n8") == ("dspark", 16, 32, "suffix")
    assert compare.read("dspark@7+w12") == ("dspark", 7, 7, "chain")
    assert compare.read("dflash2@8+32d+w12") == ("dflash2", 7, 32, "ddtree") and compare.read("ar+w12") is None
    for other in ("dflash2@8+32n6", "dflash2@8+32dn7", "dspark@7+16n7"):
        assert compare.read(other) is None, "trees of no builder"
    lines = compare.gains(systems)
    assert (
        "| dflash2@8+32 | dflash2@8 | 1 | 2.0 → 2.8 | 5.25 | 1.050 | 530.0 | 1.325 | 1.433 |" in lines
        and len(lines) == 4
    )
    arguments = ["compare.py", str(tmp_path / "tree.json"), f"dflash2={tmp_path / 'replay.json'}"]
    monkeypatch.setattr(sys, "argv", arguments)
    table, ratios = compare.against(systems, compare.curves_of(arguments[2:]), 0.03)
    assert len(table) == 5 and [round(r, 3) for r in ratios] == [round(2.0 / 2.02, 3), 1.0, round(2.5 / 2.6, 3)]
    # tokens a step are 1 or 3: a standard deviation of 1 and a mean of 2, over 300 and 100 steps
    assert table[2].endswith("| 5.8 % | 300, 100 | 2135 |")
    assert compare.main() == 1, "2.5 is 4 % below 2.6"
    monkeypatch.setattr(sys, "argv", [*arguments, "--within", "0.05"])
    assert compare.main() == 0
    monkeypatch.setattr(sys, "argv", [*arguments[:2], f"eagle={tmp_path / 'replay.json'}"])
    assert compare.main() == 3


def test_what_is_wrong_with_a_run_under_traffic() -> None:
    good = {"used_before": 0, "used_after": 0, "again": True, "retractions": 3, "of_another_length": 0}
    good["aborted"] = 40
    assert robust.faults("pressure", good, "Retract requests") == []
    assert robust.faults("traffic", {**good, "retractions": 0}, "") == []
    for change, word in (
        ({"used_after": 66}, "66 slots"),
        ({"again": False}, "first prompt"),
        ({"retractions": 0}, "smaller --pool"),
        ({"of_another_length": 2}, "2 texts"),
    ):
        assert [word in line for line in robust.faults("pressure", {**good, **change}, "")] == [True]
    assert "nothing was aborted" in robust.faults("traffic", {**good, "aborted": 0}, "")[0]
    assert robust.faults("traffic", good, "token_to_kv_pool memory leak detected! 7") != []


def test_requests_under_traffic_are_the_same_in_every_process() -> None:
    plan = robust.plan_of("traffic", 40)
    assert plan == robust.plan_of("traffic", 40) and len(plan) == 200
    waits, aborted = [wait for _, _, wait, _ in plan], [until for *_, until in plan if until is not None]
    assert waits == sorted(waits) and len(aborted) == 40 and max(aborted) < robust.LONGEST
    assert {prompt for prompt, *_ in plan} <= set(range(40)) and len({tokens for _, tokens, *_ in plan}) > 50


def test_a_copy_with_a_longer_context_links_the_weights(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text(json.dumps({"max_position_embeddings": 2048, "hidden_size": 8}))
    (tmp_path / "a" / "model.safetensors").write_bytes(b"weights")
    for _ in range(2):  # a second run finds the first one's
        made = robust.with_context(tmp_path / "a", tmp_path / "b")
    config = json.loads((made / "config.json").read_text())
    assert config == {"max_position_embeddings": 2 * robust.CONTEXT, "hidden_size": 8}
    assert (made / "model.safetensors").is_symlink() and (made / "model.safetensors").read_bytes() == b"weights"


def test_lattices_end_with_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end, positions, width, count = 9, 2, 3, 5
    # the second answer ends with its third token, the first one never; tokens go on far enough behind the last anchor
    texts = [[1, 2, 3, 4, 5, 6, 7, 8], [5, 4, end, 3, 2, 1, end, 4]]
    rows = [(r, o) for r in range(2) for o in range(count)]
    request, offset = (np.array(column, dtype=np.int32) for column in zip(*rows, strict=True))
    ids = np.tile(np.arange(width, dtype=np.int32), (len(rows), positions, 1))
    logprobs = np.log(np.full(ids.shape, 1 / width, dtype=np.float32)).astype(np.float32)
    steps = Steps(
        texts=tuple(Text(f"t{n}", np.array([7, *text], dtype=np.int32), 1) for n, text in enumerate(texts)),
        request=request, offset=offset, anchor=np.array([texts[r][o] for r, o in rows], dtype=np.int32),
        ids=ids, logprobs=logprobs, transitions=None,
        continuation=np.array([texts[r][o + 1 : o + 2 + positions] for r, o in rows], dtype=np.int32),
        accepted=np.full(len(rows), -1, dtype=np.int32), bonus=np.full(len(rows), -1, dtype=np.int32),
    )  # fmt: skip
    assert until_end.ends(steps, [end]) == [9, 2]
    body = LatticeBody(
        positions=positions, candidates=width, vocab_size=10, dense=True, drafter="DFLASH", transitions="none",
        recorder="by hand", new_tokens=count + 1, deployment=None, server=None, requests=None,
    )  # fmt: skip
    (tmp_path / "whole").mkdir()
    writer = LatticeWriter(tmp_path / "whole", body)
    writer.append(steps)
    writer.finish()
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": end}))
    given = [str(tmp_path / "whole"), "--target", str(tmp_path), "-o", str(tmp_path / "cut")]
    monkeypatch.setattr(sys, "argv", ["until_end.py", *given])
    assert until_end.main() == 0
    (found,) = LatticeReader(str(tmp_path / "cut")).blocks()
    assert list(zip(found.request.tolist(), found.offset.tolist(), strict=True)) == [*rows[:5], (1, 0), (1, 1)]
    assert LatticeReader(str(tmp_path / "cut")).body.recorder.endswith("cut at each answer's end")
