"""The script of all tree measurements, against a `python3` that writes down what it is asked for; texts for forcing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "tree"))

import forced_texts

TREE = Path(forced_texts.__file__).parent

SERVER = ("jsonschema", "soundfile", "cffi", "pycparser", "python_multipart")
PYNVML = """
import os, pathlib
class NVMLError(Exception): pass
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = NVML_VOLATILE_ECC = 0
def nvmlInit(): pass
def nvmlDeviceGetCount(): return 8
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetTotalEccErrors(*_): return 0
def nvmlDeviceGetCurrentClocksThrottleReasons(_): return 0
class Process:
    pid = 77
def nvmlDeviceGetComputeRunningProcesses(index):  # one for as many readings of a GPU as BUSY has of its number
    seen = pathlib.Path(os.environ["STATE"], f"seen-{index}")
    with seen.open("a") as lines:
        lines.write("x")
    return [Process] * (seen.stat().st_size <= os.environ["BUSY"].count(str(index)))
"""
PYTHON = """#!/bin/bash
case "$1 $2" in
-c*import\\ sglang* | -c*gdn_commit* | -c*quantization.w12*) ;;
-c*) exec "$REAL" "$@" ;;
esac
line=$(echo "$CUDA_VISIBLE_DEVICES $* [$PYTHONPATH]" | tr '\\n' ' ')
echo "$line" >>"$CALLS" # at once, since two chains write
words=" $* "
after() { local rest=${words#* "$1" }; echo "${rest%% *}"; }
case "$words" in
*stock_here.py*) mkdir "$2" ;;
*memory\\ apply*) mkdir -p "$(after --worktree)" ;;
*\\ replay\\ *) touch "$(after -o)" ;;
*deployments.py*) mkdir -p "$(after --out)" && for name in dflash2 dspark; do
  echo '"0.85"' >"$(after --out)/$(after --model)__${name}__h200-sxm__r$(after --widths).toml"; done ;;
*faults.py\\ plant*) [ "$BROKEN" != plant ] && mkdir -p "$(after --into)/sglang" ;;
*faults.py\\ judge*) [ "$BROKEN" != judge ] ;;
*h200.py* | *hybrid.py*) [ "$BROKEN" != h200 ] || echo "dspark@7 DID NOT START; its log:"
  mkdir -p "$(after --out)" && touch "$(after --out)"/{tree,texts}.json ;;
*forced_texts.py*) mkdir -p "$(after --out)" && touch "$(after --out)"/{prompts,8-over-ar,24-over-ar}.json ;;
*memory\\ *|*seal\\ make*) ;;
*pair-run*|*force-tokens*) env | grep -E "^(SPECPILOT|PYTHONPATH)" | sort >"$OUT/server-env"; exit 5 ;;
esac
"""


def laid_out(folder: Path, without: str = "") -> None:
    """What the testbed leaves, a `python3` of ours, and modules that it imports; `without`: one that is not there."""
    state = folder / "state"
    for name in ("smollm2", "drafters", "dense8b/target", "prompts", "core/core", "big/hyb27b/target"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "prompts" / "some.jsonl").write_text("{}\n" * 9)
    (state / "held-ids.json").touch()
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python3").write_text(PYTHON)
    (folder / "bin" / "python3").chmod(0o755)
    for name in {*SERVER, "pynvml"}:
        (folder / "site" / name).mkdir(parents=True, exist_ok=True)
        says = PYNVML if name == "pynvml" else ""
        (folder / "site" / name / "__init__.py").write_text("raise ImportError" if name == without else says)


def called(folder: Path, *words: str, **more: str) -> tuple[int, list[str], str]:
    """Exit code, calls of python3 with the GPU in front and PYTHONPATH behind, and what was said, of one call."""
    made = {"STATE": folder / "state", "OUT": folder / "out", "BIG": folder / "state" / "big", "REAL": sys.executable}
    made |= {"CALLS": folder / "calls", "PYTHONPATH": folder / "site", "HOME": folder}
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPECPILOT", "CUDA"))}
    env |= {k: str(v) for k, v in made.items()} | {"BUSY": "", "BROKEN": "", "IDLE": "5", **more}
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    (folder / "calls").write_text("")
    argv = ["bash", str(TREE / "whole.sh"), *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    return done.returncode, (folder / "calls").read_text().splitlines(), done.stdout + done.stderr


def which(lines: list[str], *words: str) -> list[int]:
    return [at for at, line in enumerate(lines) if all(word in line for word in words)]


def times(folder: Path) -> str:
    return (folder / "out" / "times.txt").read_text()


@pytest.mark.parametrize("gpus", [["0"], ["4", "7"]])
def test_every_job_runs_once_in_the_order_of_its_worth(tmp_path: Path, gpus: list[str]) -> None:
    laid_out(tmp_path)
    code, lines, said = called(tmp_path, "prepare")
    assert code == 0, said
    assert [len(which(lines, *words)) for words in (["stock_here"], ["memory apply"], ["request_sets"])] == [1, 4, 2]
    assert len(which(lines, "import sglang")) == 5
    assert len(which(lines, "gdn_commit")) == len(which(lines, "w12 import ops")) == 1
    assert len((tmp_path / "state" / "some" / "some.jsonl").read_text().splitlines()) == 6
    # the gates' pair-run fails here, on purpose; the others go on
    _, lines, said = called(tmp_path, *gpus)
    assert not which(lines, "stock_here") and not which(lines, "request_sets"), "what ended well is not run again"
    first = ["dflash2@8+32d --profile", "--noise", "robust.py", "--noise", "dflash2@8+32n7~8"]
    first += ["faults.py plant", "compileall", "core/tree-sibling", "over-ar.json", "faults.py judge sibling"]
    rows = [at for at in range(len(lines)) if lines[at].startswith(f"{gpus[0]} ") and "27b" not in lines[at]]
    at = -1
    for word in first:
        later = [n for n in rows if word in lines[n] and n > at]
        assert later, (word, [lines[n][:160] for n in rows], times(tmp_path))
        at = later[0]
    assert "--go-on" in lines[which(lines, "n7~8")[0]] and "--go-on" not in lines[which(lines, "--profile")[0]]
    last = ["dflash2@8,", "dspark@7,", "32d/cuda,", "16 24", "--noise", "hybrid/tree-sibling", "hybrid/tree-stale"]
    last += ["bench_commit", "bench_native", "forced.py", "judge sibling", "judge stale"]
    found = [max(which(lines, word, *([] if "bench" in word else ["27b"]))) for word in last]
    assert found == sorted(found)
    for name, script, system in (("core", "h200", "+32n7 "), ("hybrid", "hybrid", "+32n7/cuda ")):
        served = [line for line in lines if f"{script}.py" in line and "--patched" in line]
        assert len(served) == {"core": 1, "hybrid": 2}[name]
        assert all(f"dflash2@8{system}--patched {tmp_path}/state/wt/{name}/tree-" in line for line in served)
        assert all("--out" in line and line.split("--out ")[1].startswith(f"{tmp_path}/out/tree-") for line in served)
    other = [line for line in lines if "27b" in line and not line.startswith(f"{gpus[-1]} ")]
    assert not other
    assert {line.split()[0] for line in lines if "h200.py" in line or "robust.py" in line} == {gpus[0]}
    assert '"0.94"' in (tmp_path / "state" / "deployments" / "standin-hyb27b__dflash2__h200-sxm__r1.toml").read_text()
    done = {line.split()[1].rstrip(":"): line for line in times(tmp_path).splitlines()}
    bad = {name for name, line in done.items() if ": rc 0," not in line}
    assert bad == {"tree-gate-dflash2", "tree-gate-dspark", "tree-gate-27b"}
    _, lines, _ = called(tmp_path, *gpus)
    assert {word for line in lines for word in line.split() if word.endswith(".py")} == set() and which(
        lines, "--noise"
    )


def test_the_server_of_a_gate_sees_what_was_checked(tmp_path: Path) -> None:
    laid_out(tmp_path)
    called(tmp_path, "0", "1")
    found = dict(line.split("=", 1) for line in (tmp_path / "out" / "server-env").read_text().splitlines())
    assert found["SPECPILOT_SGLANG_PATH"] == str(tmp_path / "site") and found["PYTHONPATH"].endswith(
        ":" + str(tmp_path / "site")
    )
    assert found["SPECPILOT_SGLANG_CACHE"] == str(tmp_path / ".cache" / "sglang")


@pytest.mark.parametrize("name", ["soundfile", "python_multipart", "pynvml"])
def test_a_missing_import_is_said_before_anything_runs(tmp_path: Path, name: str) -> None:
    laid_out(tmp_path, without=name)
    for words in (["prepare"], ["0", "1"]):
        code, lines, said = called(tmp_path, *words)
        assert (code, lines) == (4, []) and f"no {name}" in said and "jsonschema" not in said


def test_a_gate_waits_for_its_gpu_and_does_not_begin_on_a_busy_one(tmp_path: Path) -> None:
    laid_out(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1", BUSY="11")  # two readings: gone in time
    assert which(lines, "1 ", "--noise", "hyb27b") and "not begun" not in times(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1", BUSY="0" * 99, IDLE="0.1")
    assert not which(lines, "standin-dense8b", "--noise") and which(lines, "standin-hyb27b", "--noise")
    assert "tree-gate-dflash2: not begun, GPU 0 has processes [77]" in times(tmp_path)


def test_only_what_is_asked_for(tmp_path: Path) -> None:
    laid_out(tmp_path)
    assert called(tmp_path, "prepare")[0] == 0
    _, lines, _ = called(tmp_path, "0", "1", ONLY="tree-deployments tree-gate-dflash2", BUSY="1" * 99)
    assert which(lines, "deployments.py") and which(lines, "standin-dense8b", "--noise")
    assert len(lines) == 2 and "not begun" not in times(tmp_path), "nobody waits for the other GPU"
    _, lines, _ = called(tmp_path, "0", "1")
    assert which(lines, "h200.py") and which(lines, "hybrid.py") and not which(lines, "deployments.py", "dense8b")


def test_what_fails_or_is_not_there_stops_only_what_needs_it(tmp_path: Path) -> None:
    laid_out(tmp_path)
    (tmp_path / "state" / "held-ids.json").unlink()
    _, lines, _ = called(tmp_path, "0", "1", BROKEN="h200")
    assert (
        "tree-27b: left out, no " in times(tmp_path) and not which(lines, "hybrid.py") and which(lines, "bench_native")
    )
    assert "tree-8b: rc 1" in times(tmp_path), "an engine that did not start is no table"
    assert "tree-8b-sibling: rc 1" in times(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1")
    assert which(lines, "--profile") and not which(lines, "robust.py")
    assert which(lines, "plant sibling") and which(lines, "judge sibling")


def test_a_fault_that_forcing_lets_pass_is_a_job_that_failed(tmp_path: Path) -> None:
    laid_out(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1", BROKEN="judge")
    names = ("tree-8b-sibling", "tree-27b-sibling", "tree-27b-stale")
    for name in names:
        assert f"{name}: rc 0" in times(tmp_path) and f"{name}-forced: rc 1" in times(tmp_path)
    assert which(lines, "bench_native"), "it stops nothing else"
    _, lines, _ = called(tmp_path, "forced")
    judged = [line for line in lines if "faults.py judge" in line]
    assert len(judged) == 3 and not which(lines, "forced_texts.py"), "only what failed is judged again"
    for name, core in zip(names, ("smollm2", "core/core", "core/core"), strict=True):
        (line,) = (line for line in judged if f"/out/{name}/texts.json" in line)
        honest = "tree-8b" if "8b" in name else "tree-27b"
        assert f"--honest {tmp_path}/out/{honest}/texts.json --target {tmp_path}/state/{core} " in line
    assert called(tmp_path, "forced")[1] == []


def test_without_a_planted_fault_nothing_is_served(tmp_path: Path) -> None:
    laid_out(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1", BROKEN="plant")
    assert len(which(lines, "faults.py plant")) == 3 and not which(lines, "--patched")
    assert "tree-27b-stale: rc 1" in times(tmp_path) and not which(lines, "faults.py judge")


def test_nothing_begins_late(tmp_path: Path) -> None:
    laid_out(tmp_path)
    _, lines, _ = called(tmp_path, "0", "1", UNTIL="0")
    assert not lines and "tree-stock: left out" in times(tmp_path)
    begun = time.monotonic()
    called(tmp_path, "0", "1", WAIT="2")
    assert time.monotonic() - begun >= 2, "the testbed's jobs had two seconds to end"


def test_texts_are_forced_again_where_there_are_more(tmp_path: Path) -> None:
    laid_out(tmp_path)
    assert called(tmp_path, "forced")[1] == []
    texts = tmp_path / "out" / "tree-27b" / "texts.json"
    texts.parent.mkdir(parents=True)
    texts.touch()
    _, lines, _ = called(tmp_path, "forced")
    assert len(which(lines, "forced_texts.py", "core/core")) == 1 and len(which(lines, "forced.py", "core/core")) == 2
    assert called(tmp_path, "forced")[1] == []
    os.utime(texts, (time.time() + 9, time.time() + 9))
    assert len(called(tmp_path, "forced")[1]) == 3


TEXTS: dict[str, Any] = {
    "dflash2@8": {"1": [[1]], "8": [[1], [2]]},
    "dflash2@8+32/cuda": {"1": [[3]], "8": [[3], [4]]},
    "dspark@7+32/cuda": {"8": [[5], [6]]},
}


def made(
    folder: Path, texts: Any, prompts: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> tuple[int, dict[str, Any]]:
    """Exit code and the files, of one call."""
    (folder / "texts.json").write_text(json.dumps(texts))
    words = [
        "--texts",
        str(folder / "texts.json"),
        "--target",
        "T",
        "--prompts",
        str(prompts),
        "--out",
        str(folder / "o"),
    ]
    monkeypatch.setattr(sys, "argv", ["forced_texts.py", *words, *more])
    code = forced_texts.main()
    return code, {path.name: json.loads(path.read_text()) for path in (folder / "o").glob("*.json")}


def test_a_chain_stands_in_for_ar_over_its_own_trees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"a": [[9, 1], [9, 2]], "b": [[9, 3]]}))
    code, files = made(tmp_path, TEXTS, rows, monkeypatch)
    assert code == 0 and sorted(files) == ["1-over-dflash2-8.json", "8-over-dflash2-8.json", "prompts.json"]
    assert files["8-over-dflash2-8.json"] == {"ar": {"8": [[1], [2]]}, "dflash2@8+32/cuda": {"8": [[3], [4]]}}
    assert files["prompts.json"] == {"1": [[9, 1]], "8": [[9, 1], [9, 2]]}
    assert "2 answers each of dflash2@8+32/cuda; ar: dflash2@8's" in capsys.readouterr().out
    code, files = made(
        tmp_path / "..",
        TEXTS | {"ar": {"8": [[7], [8]]}},
        rows,
        monkeypatch,
        "--sets",
        "8",
        "--out",
        str(tmp_path / "p"),
    )
    only = json.loads((tmp_path / "p" / "8-over-ar.json").read_text())
    assert list(only) == ["ar", *TEXTS] and only["ar"] == {"8": [[7], [8]]}
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == ["8-over-ar.json", "prompts.json"]


def test_texts_that_cannot_be_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text("[[9, 1]]")
    with pytest.raises(SystemExit, match="1 prompts, 2 answers"):
        made(tmp_path, TEXTS, rows, monkeypatch)
    rows.write_text("[[9, 1], [9, 2]]")
    with pytest.raises(SystemExit, match="different numbers"):
        made(tmp_path, TEXTS | {"dflash2@8": {"8": [[1]]}}, rows, monkeypatch)
    assert made(tmp_path, {"dspark@7+32": {"8": [[1]]}}, rows, monkeypatch)[0] == 3


def test_prompts_of_h200_are_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"dspark@7": {"alone": [[1]], "together": [[1], [2], [3]]}}
    texts["dspark@7+32d"] = texts["dspark@7"]
    (tmp_path / "ids.json").write_text("[[9], [8], [7], [6]]")
    _, files = made(tmp_path, texts | {"ring": {"alone": [[0]], "together": [[0]]}}, tmp_path / "ids.json", monkeypatch)
    assert files["prompts.json"] == {"alone": [[9]], "together": [[9], [8], [7]]}
    assert sorted(files) == ["alone-over-dspark-7.json", "prompts.json", "together-over-dspark-7.json"]
    assert "ring" not in files["together-over-dspark-7.json"]
    texts = json.loads((tmp_path / "texts.json").read_text())
    for name in ("a", "b"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        (tmp_path / "folder" / f"{name}.jsonl").write_text(
            "".join(json.dumps({"prompt": f"{name}{n}"}) + "\n" for n in "12")
        )
    monkeypatch.setattr("specpilot_cli.testbed.chat.chat_encoder", lambda _: lambda text: list(text.encode()))
    _, files = made(tmp_path, texts, tmp_path / "folder", monkeypatch)
    assert [bytes(ids).decode() for ids in files["prompts.json"]["together"]] == ["a1", "b1", "a2"]
