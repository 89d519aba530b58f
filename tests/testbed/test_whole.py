"""The script that makes every figure, against a `python3` that only writes down what it was asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "testbed" / "whole.sh"
PYTHON = """#!/bin/bash
# what runs beside the chains, whose end has to wait for it
case "$*" in *forced.py* | *audit* | *replay*) sleep 1 ;; esac
echo "$CUDA_VISIBLE_DEVICES $*" >>"$CALLS"
case "$*" in
*convert.py*) mkdir -p "$STATE/smollm2" && touch "$STATE/smollm2/manifest.json" "$STATE/smollm2/tokenizer.json" ;;
*train.py*--part*) mkdir -p "$STATE/work" ;;
*train.py*--minutes*) mkdir -p "$STATE/drafters" && echo {} >"$STATE/drafters/evaluation.json" &&
  for name in dflash2 dspark eagle3; do case "$*" in *--only*$name*) mkdir -p "$STATE/drafters/$name" &&
    echo {} >"$STATE/drafters/$name/manifest.json" ;; esac; done ;;
*core.py*) [ -z "$BROKEN" ] || exit 3
  mkdir -p "$STATE/core" && echo {} >"$STATE/core/evaluation.json" && echo "[[1, 2]]" >"$STATE/core/held-ids.json" ;;
*standin.py*standin-dense8b*) mkdir -p "$STATE/dense8b/target" ;;
-c*) exec "$REAL" "$@" ;;
esac
"""


def calls(folder: Path, gpus: list[str], broken: str = "", chains: str = "") -> list[str]:
    """Prepare, run; every call of python3 with the GPU that it saw."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / "python3").write_text(PYTHON)
    (folder / "bin" / "python3").chmod(0o755)
    (folder / "prompts").mkdir(exist_ok=True)
    (folder / "prompts" / "some.jsonl").touch()
    (folder / "text").touch()
    made = {"STATE": folder / "state", "OUT": folder / "out", "CALLS": folder / "calls", "REAL": sys.executable}
    env = {**os.environ, **{k: str(v) for k, v in made.items()}, "BROKEN": broken}
    env |= {"CHAINS": chains} if chains else {}
    env["PATH"] = f"{folder / 'bin'}:{env['PATH']}"
    (folder / "calls").write_text("")
    for words in (["prepare", "x.gguf", str(folder / "prompts"), str(folder / "text")], gpus):
        subprocess.run(["bash", str(SCRIPT), *words], env=env, check=True, timeout=120, stdin=subprocess.DEVNULL)
    return (folder / "calls").read_text().splitlines()


def which(lines: list[str], *words: str) -> list[int]:
    return [at for at, line in enumerate(lines) if all(word in line for word in words)]


@pytest.mark.parametrize("gpus", [["0"], ["4", "7"]])
def test_every_job_runs_once_behind_what_it_needs(tmp_path: Path, gpus: list[str]) -> None:
    lines = calls(tmp_path, gpus)
    texts, train = which(lines, "--part"), which(lines, "--minutes", "train.py")
    assert len(texts) == len(gpus) and len(train) == 2 and max(texts) < train[0]
    served = ("dense8b.json", "smollm2.json", "hyb27b-few.json")
    for name in (*served, "replay-dspark.json", "dense8b-forced.json", "hyb27b-forced.json", "core-forced.json"):
        assert len(which(lines, name)) == 1, name
    assert (
        which(lines, "standin-dense8b")[0] > train[1] and which(lines, "standin-hyb27b")[0] > which(lines, "core.py")[0]
    )
    assert [line.split()[0] for line in lines if "serve.py" in line and "hyb27b" in line] == [gpus[-1]] * 3
    assert [line.split()[0] for line in lines if "dense8b.json" in line] == [gpus[0]]
    (timed,) = (lines[at] for at in which(lines, "serve.py", "dense8b.json"))
    waited = {Path(word).name for word in timed.partition("--after ")[2].split()[:3]}
    assert waited == {"smollm2", "lattices-dflash2", "lattices-dspark"}, "they share its GPU"
    assert waited <= {path.name for path in (tmp_path / "state" / "done").iterdir()}
    done = (tmp_path / "out" / "times.txt").read_text()
    assert done.count("rc 0") == done.count("\n") == len(list((tmp_path / "state" / "done").iterdir())) - 1
    assert not which(calls(tmp_path, gpus), ".py"), "what ended well is not run again"


def test_what_fails_stops_only_what_needs_it_and_is_run_again(tmp_path: Path) -> None:
    lines = calls(tmp_path, ["0", "1"], broken="yes")
    assert not which(lines, "hyb27b") and which(lines, "dense8b.json")
    assert "core: rc 3" in (tmp_path / "out" / "times.txt").read_text()
    lines = calls(tmp_path, ["0", "1"])
    assert which(lines, "core.py") and which(lines, "hyb27b-few.json") and not which(lines, "dense8b.json")


def test_one_chain_alone_writes_all_texts_itself(tmp_path: Path) -> None:
    lines = calls(tmp_path, ["0", "1"], chains="smollm2")
    assert which(lines, "--part 1/1") and which(lines, "dense8b.json") and not which(lines, "core.py")
    lines = calls(tmp_path, ["3"], chains="hybrid_core")
    assert which(lines, "hyb27b-few.json") and not which(lines, "train.py")
    assert {line.split()[0] for line in lines if ".py" in line and "convert" not in line} == {"3"}
