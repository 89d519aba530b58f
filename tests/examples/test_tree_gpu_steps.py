"""What prepares and reads `examples/tree` on a GPU: groups of engines, request sets, profiles, stock."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable
from specpilot_cli.deployment import load_requests
from specpilot_cli.engine.sglang.manifest import Manifest, blob_id
from specpilot_cli.testbed.benchmarks import Benchmark, load_benchmark, split_of, write_requests
from specpilot_cli.testbed.benchmarks import Prompt as BenchmarkPrompt

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tree"))

import hybrid
import profiled
import request_sets
import requests_file
import stock_here
from framings import FRAMINGS

ENGINE = """
import os, pathlib, time
BUSY = pathlib.Path(os.environ["FAKE_BUSY"])
class Engine:
    def __init__(self, **settings):
        if settings.get("speculative_algorithm") == "DSPARK":
            raise RuntimeError("out of memory, let us say")
        self.tau, self.most = 3 if "speculative_tree_nodes" in settings else 2, settings["max_running_requests"]
        print("noise on stdout")
        while not (BUSY / "started").exists():  # both engines of a group are there before one is measured
            (BUSY / f"here-{os.getpid()}").touch()
            if len(list(BUSY.glob("here-*"))) == 2:
                (BUSY / "started").touch()
            time.sleep(0.01)
    def get_server_info(self):
        return {"max_total_num_tokens": 77}
    def generate(self, input_ids, sampling_params):
        assert len(input_ids) <= self.most
        (BUSY / "measured").touch(exist_ok=False)
        (BUSY / "measured").unlink()
        tokens = sampling_params["max_new_tokens"]
        steps = -(-(tokens - 1) // self.tau)
        time.sleep(0.002 * steps)
        meta = {"completion_tokens": tokens, "spec_verify_ct": steps, "spec_num_correct_drafts": steps * (self.tau - 1)}
        return [{"output_ids": [self.tau] * tokens, "meta_info": meta} for _ in input_ids]
    def shutdown(self):
        pass
"""


def test_a_group_starts_at_once_and_is_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("stock", "ours"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sglang.py").write_text(ENGINE)
    monkeypatch.setenv("FAKE_BUSY", str(tmp_path))
    monkeypatch.setattr(hybrid, "worktrees", lambda *_: (tmp_path / "stock", tmp_path / "ours"))
    words = ["hybrid.py", "--out", str(tmp_path / "out"), "--work", str(tmp_path / "work"), "--target", "T"]
    words += ["--drafters", "D", "--widths", "1", "2", "--new-tokens", "25", "--set", "max_running_requests=2"]
    systems = ["--systems", "dflash2@8,dflash2@8+32/cuda", "dspark@7"]
    monkeypatch.setattr(sys, "argv", [*words, *systems, "--start-s", "60"])
    assert hybrid.main() == 0
    report = json.loads((tmp_path / "out" / "hybrid.json").read_text())
    assert {name: found["1"]["tau"] for name, found in report.items()} == {"dflash2@8": 2.0, "dflash2@8+32/cuda": 3.0}
    assert report["dflash2@8"]["2"]["engine_steps"] == 12 * 12 and report["dflash2@8"]["tokens"] == 77
    said = capsys.readouterr().out
    assert "dspark@7 DID NOT START" in said and "out of memory, let us say" in said
    assert said.count("RESULT") == 4 and "x dflash2@8, " in said and "x with prompts; a step" in said
    texts = json.loads((tmp_path / "out" / "texts.json").read_text())
    assert [len(texts["dflash2@8"][width]) for width in "12"] == [6, 24] and texts["dflash2@8"]["1"][0] == [2] * 25
    monkeypatch.setattr(sys, "argv", [*words, *systems[:2]])
    (tmp_path / "stock" / "sglang.py").write_text("raise SystemExit('started again')")
    assert hybrid.main() == 0 and "start" not in capsys.readouterr().out, "what is there is not measured again"


def test_every_framing_of_a_prompt_is_in_its_split(tmp_path: Path) -> None:
    prompts = [BenchmarkPrompt(f"p{n}", f"Question {n}?") for n in range(30)]
    made = request_sets.mixed(
        request_sets.framed(load_benchmark("gsm8k"), prompts, lambda text: list(text.encode()), "both")
    )
    count = 30 * len(FRAMINGS)
    assert len(made) == count and len({request.input_ids for request in made}) == count
    assert {request.benchmark for request in made} == {"both"} and [r.id for r in made] != sorted(r.id for r in made)
    for request in made:
        plain = prompts[int(request.id.split("-")[0].removeprefix("p"))].prompt
        assert request.split == split_of(plain) and request.prompt.startswith(plain)
        assert bytes(request.input_ids).decode() == request.prompt
    path = tmp_path / "both.jsonl"
    path.write_bytes(write_requests(made))
    sealed = load_requests(str(path), "sealed").requests
    assert len(sealed) % len(FRAMINGS) == 0 and 0 < len(sealed) < count


def test_benchmarks_in_a_request_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def local(benchmark: Benchmark, folder: Path) -> tuple[BenchmarkPrompt, ...]:
        if folder.name == "none":
            raise InputUnusable("cannot be read")
        return tuple(BenchmarkPrompt(f"{benchmark.id}-{n}", f"{benchmark.id} {n}?") for n in range(9))

    monkeypatch.setattr(requests_file, "read_local", local)
    for module in (requests_file, request_sets):
        monkeypatch.setattr(module, "chat_encoder", lambda _: lambda text: list(text.encode()))
    path = tmp_path / "both.jsonl"

    def made(main: Callable[[], int], *words: str) -> tuple[list[str], set[str]]:
        """Ids in their order, and the benchmarks that they are of."""
        given = ["gsm8k", "mbpp", "--limit", "7", "--tokenizer", "t", "--local", "some", "-o", str(path)]
        monkeypatch.setattr(sys, "argv", ["x", *words, *given])
        assert main() == 0
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        return [row["id"] for row in rows], {row["benchmark"] for row in rows}

    apart, of = made(requests_file.main)
    assert apart == [f"{name}-{n}" for name in ("gsm8k", "mbpp") for n in range(7)] and of == {"gsm8k", "mbpp"}
    together, of = made(requests_file.main, "--together")
    assert together != apart and sorted(together) == apart and of == {"both"}
    framed, of = made(request_sets.main, "framed")
    assert (
        len(framed) == 14 * len(FRAMINGS) and of == {"both"} and [name for name in framed if name in apart] == together
    )
    monkeypatch.setattr(sys, "argv", ["x", "gsm8k", "--tokenizer", "t", "--local", "none", "-o", str(path)])
    assert requests_file.main() == InputUnusable("").exit_code and len(path.read_bytes().splitlines()) == len(framed)


def test_rows_of_ids_are_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[n, n + 1, 5] for n in range(40)]
    (tmp_path / "rows.json").write_text(json.dumps({"held": rows[:20], "more": rows[20:]}))
    path = tmp_path / "held.jsonl"
    monkeypatch.setattr(sys, "argv", ["x", "ids", str(tmp_path / "rows.json"), "-o", str(path), "--new-tokens", "12"])
    assert request_sets.main() == 0
    found = [r for split in ("develop", "sealed") for r in load_requests(str(path), split).requests]
    assert sorted(list(r.input_ids) for r in found) == rows and {r.max_new_tokens for r in found} == {12}
    assert 8 <= sum(r.split == "sealed" for r in found) <= 32
    for bad, word in (([[1], []], "empty"), ([[1], [1]], "twice")):
        with pytest.raises(InputUnusable, match=word):
            request_sets.of_ids(bad, "held", 12)


def profile(gpu_us: float, rows: list[Any]) -> dict[str, Any]:
    return {"steps": 10, "gpu_us": gpu_us, "launches": 3.0, "kernels": rows}


def test_what_a_trees_step_spends_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    systems = {
        "dspark@7": {"1": {"step_ms": 6.5}, "profile": profile(6000.0, [[100.0, 2.0, "gemm"], [5.0, 1.0, "old"]])},
        "dspark@7+32": {"1": {"step_ms": 7.5}, "profile": profile(7000.0, [[160.0, 2.0, "gemm"], [90.0, 1.0, "new"]])},
        "dflash2@8": {"1": {"step_ms": 6.0}, "profile": None},
        "dflash2@8+32": {"1": {"step_ms": 6.0}, "profile": profile(1.0, [])},
    }
    (tmp_path / "tree.json").write_text(json.dumps({"systems": systems}))
    monkeypatch.setattr(sys, "argv", ["profiled.py", str(tmp_path / "tree.json")])
    assert profiled.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("dspark@7: step 6500 us; on the GPU 6000 us") and lines[0].endswith("not busy 500 us")
    assert [line.split(" | ")[0] for line in lines[3:6]] == ["| +90.0", "| +60.0", "| -5.0"]
    assert lines[3] == "| +90.0 | 0.0 in 0 | 90.0 in 1 | new |"
    (tmp_path / "tree.json").write_text(json.dumps({"systems": {}}))
    assert profiled.main() == 3


def test_stock_of_an_installation(tmp_path: Path) -> None:
    files = {"sglang/__init__.py": b"version = 1\n", "sglang/srt/a.py": b"a = 1\n"}
    blobs = {name: blob_id(data) for name, data in files.items()}
    tree = "055576fcabbe876c59bc106b1319889cc6430182"  # of `git write-tree`
    for name, data in {**files, "sglang/_version.py": b"made", "sglang/srt/b.so": b"made", "numpy/x.py": b""}.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_bytes(data)
    with pytest.raises(EnvironmentUnusable, match="its tree is"):
        stock_here.make(tmp_path / "other", tmp_path / "site", Manifest("0.5.20", tree[::-1], blobs))
    made = stock_here.make(tmp_path / "stock", tmp_path / "site", Manifest("0.5.20", tree, blobs))
    kept = sorted(p.relative_to(made.path).as_posix() for p in made.path.rglob("sglang/**/*") if p.is_file())
    assert kept == sorted(files) and made.tree == tree
    (tmp_path / "site" / "sglang" / "srt" / "a.py").write_bytes(b"a = 2\n")
    with pytest.raises(EnvironmentUnusable, match=r"a\.py is not stock's"):
        stock_here.make(tmp_path / "third", tmp_path / "site", Manifest("0.5.20", tree, blobs))


def test_settings_of_a_hybrid_group() -> None:
    options = argparse.Namespace(target=Path("t"), drafters=Path("d"), set=["max_running_requests=8"])
    made = hybrid.settings(options, "dspark@7+32d/cuda")
    assert made["speculative_tree_mode"] == "ddtree" and made["max_running_requests"] == 8
    assert hybrid.switches("dspark@7+32d/cuda") == {"SGLANG_GDN_COMMIT": "cuda", "SGLANG_GDN_TREE": "cuda"}
    assert hybrid.switches("dspark@7") == {}


GATE = Path(__file__).resolve().parents[2] / "examples" / "tree" / "gate.sh"
SPECPILOT = """#!/usr/bin/env python3
import json, os, pathlib, sys, time
words, here = sys.argv[1:], pathlib.Path(os.environ["CALLS"])
file = words[words.index("-o" if "-o" in words else "--resume") + 1] if words[:2] != ["seal", "verify"] else ""
with here.open("a") as calls:
    calls.write(json.dumps([file, *words]) + "\\n")
if words[0] == "force-tokens":  # both at once, or neither ends
    pathlib.Path(file + ".here").touch()
    other = pathlib.Path({"forced-1.json": "forced-2.json", "forced-2.json": "forced-1.json"}[file] + ".here")
    until = time.monotonic() + 30 * ("cut" not in os.environ["PLAN"])
    while not other.exists() and time.monotonic() < until:
        time.sleep(0.01)
plan = json.loads(os.environ["PLAN"]).get(file, [])
verdict = plan[min(pathlib.Path(here).read_text().count(f'["{file}"') - 1, len(plan) - 1)] if plan else "PROMOTED"
if file:
    pathlib.Path(file).write_text(json.dumps({"complete": verdict != "cut", "body": {"verdict": verdict}}))
"""


def gate(tmp_path: Path, plan: dict[str, list[str]], **more: str) -> tuple[int, list[list[str]], str]:
    """Exit code, calls (the artifact first), and what was said, of `gate.sh` with a made-up specpilot."""
    for name in ("stock", "tree"):
        (tmp_path / name).mkdir(exist_ok=True)
    (tmp_path / "d.toml").touch()
    program, calls = tmp_path / "specpilot", tmp_path / "calls"
    program.write_text(SPECPILOT)
    program.chmod(0o755)
    calls.write_text("")
    env = {**os.environ, "STOCK": "stock", "CANDIDATE": "tree", "DEPLOYMENT": "d.toml", "SPECPILOT": str(program)}
    env |= {"CALLS": str(calls), "PLAN": json.dumps(plan), "FLAGS": "--nodes 32", "VARY": "a b", **more}
    done = subprocess.run(["bash", str(GATE), "out"], cwd=tmp_path, env=env, capture_output=True, text=True)
    return done.returncode, [json.loads(line) for line in calls.read_text().splitlines()], done.stdout + done.stderr


def test_both_runs_then_both_forcings_at_once(tmp_path: Path) -> None:
    beside = {"BESIDE": "touch beside"}
    code, calls, said = gate(tmp_path, {"noise.json": ["INFRA", "none"]}, SIZES="1 24", BATCHES="8", **beside)
    files = [file for file, *_ in calls]
    assert code == 0 and files[:4] == ["noise.json", "noise.json", "pair-1.json", "pair-2.json"], said
    assert sorted(files[4:6]) == ["forced-1.json", "forced-2.json"] and files[6:] == ["seal.json", ""]
    assert (tmp_path / "out" / "beside").exists()
    design = ["--order", "AB", "--starts", "2", "-c", "1", "-c", "24", "--batches", "8", "--requests", "192"]
    assert all(" ".join(design) in " ".join(words) for words in calls[:4])
    assert calls[2][4:] != calls[3][4:] and "--candidate-flag=--nodes --candidate-flag=32" in " ".join(calls[2])
    code, calls, _ = gate(tmp_path, {})
    assert [file for file, *_ in calls] == ["seal.json", ""], "what is complete is not measured again"


def test_a_deadline_leaves_the_rest_out_and_the_next_call_resumes(tmp_path: Path) -> None:
    _, calls, said = gate(tmp_path, {"pair-2.json": ["cut"]}, WITHIN="100")
    assert [file for file, *_ in calls[:3]] == ["noise.json", "pair-1.json", "pair-2.json"]
    assert "pair-2.json: partial" in said and calls[3][0] == "forced-1.json"
    _, calls, said = gate(tmp_path, {}, WITHIN="20")
    assert calls == [["seal.json", *calls[0][1:]], ["", "seal", "verify", "seal.json"]] and "late: pair-2.json" in said
    _, calls, _ = gate(tmp_path, {})
    assert calls[0][0] == "pair-2.json" and calls[0][-2:] == ["--resume", "pair-2.json"]
    assert gate(tmp_path, {}, STOCK="nowhere")[0] == 2
    code, calls, said = gate(tmp_path, {}, SIZES="1 8", BATCHES="8", REQUESTS="65")
    assert (code, calls) == (2, []) and "8 batches of 8 do not take 65 requests" in said
