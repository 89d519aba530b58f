"""The serving script against a made-up engine: settings, counters, a system that hangs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

ROOT = Path(__file__).parents[2]
ENGINE = """
import json, os, subprocess, sys, time
class Engine:
    def __init__(self, **settings):
        self.settings = settings
        if settings.get("speculative_algorithm") == "DSPARK":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            open(os.environ["CHILD"], "w").write(str(child.pid))
            time.sleep(60)
    def generate(self, input_ids, sampling_params):
        with open(os.environ["CHILD"] + "-log", "a") as log:  # appended whole: who is measured, in order
            print(os.getpid(), file=log)
        time.sleep(0.01 * sampling_params["max_new_tokens"] * (2 if self.settings.get("load_format") else 1))
        drafted = {"spec_verify_ct": 4, "spec_num_correct_drafts": 6}
        drafted = drafted if "speculative_algorithm" in self.settings else {}
        count = min(3, sampling_params["max_new_tokens"])
        return [{"output_ids": ids[:3], "meta_info": {"completion_tokens": count, **drafted}} for ids in input_ids]
    def shutdown(self):
        pass
"""


@pytest.mark.parametrize("together", [False, True])
def test_each_system_is_run_counted_and_limited(tmp_path: Path, together: bool) -> None:
    (tmp_path / "fake" / "sglang").mkdir(parents=True)
    (tmp_path / "fake" / "sglang" / "__init__.py").write_text(ENGINE)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "ids.json").write_text(json.dumps({"held": [[5, 6, 7, 8]] * 3}))
    argv = [sys.executable, str(ROOT / "examples" / "testbed" / "serve.py"), "--target", str(tmp_path / "target")]
    argv += ["--drafters", str(tmp_path), "--prompts", str(tmp_path / "ids.json"), "--out", str(tmp_path / "r.json")]
    argv += ["--start-s", "8", *(["--together"] if together else []), "--set", "page_size=2"]
    argv += ["--new-tokens", "4", "--rounds", "2", "--steps", "3", "--widths", "1", "2"]
    argv += ["--systems", "ar", "ar~random", "dflash2@8", "eagle3-chain@5", "dspark@7"]
    argv += ["--after", str(tmp_path / "target"), *([str(tmp_path / "never")] if together else [])]
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "fake"), "CHILD": str(tmp_path / "child")}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    late = next((line for line in done.stdout.splitlines() if line.startswith("late: ")), "")
    assert (str(tmp_path / "never") in late) == together and str(tmp_path / "target") not in late
    report = json.loads((tmp_path / "r.json").read_text())
    systems, settings = report["systems"], report["settings"]
    assert systems["ar"]["sets"]["held"]["tau"] is None
    assert systems["dflash2@8"]["sets"]["held"]["tau"] == 2.5
    assert systems["dflash2@8"]["same_as_ar"] == {"held": "3 of 3"}
    assert "failed_after_s" in systems["dspark@7"] and "sets" not in systems["ar~random"]
    assert settings["ar~random"] == {**settings["ar"], "load_format": "dummy"}
    assert [len(systems["ar"]["speed"][width]["rounds"]) for width in ("1", "2")] == [2, 2]
    assert "speed" not in systems["ar~random"] and "steps" not in systems["dflash2@8"]
    assert report["over_random"].keys() == ({"ar"} if together else set()), "twins are measured in turn, or not at all"
    if together:
        ours, theirs = ([one["step_ms"] for one in systems[n]["steps"]["1"]["rounds"]] for n in ("ar", "ar~random"))
        middle = sorted(a / b for a, b in zip(ours, theirs, strict=True))[1]
        assert abs(report["over_random"]["ar"]["1"] - middle) < 1e-4
    assert settings["dflash2@8"]["speculative_dflash_block_size"] == 8 and settings["ar"]["page_size"] == 2
    assert settings["eagle3-chain@5"]["speculative_num_draft_tokens"] == 6
    assert settings["eagle3-chain@5"]["speculative_draft_model_path"] == str(tmp_path / "eagle3")
    assert settings["ar"].get("max_total_tokens") == (24 * 2048 if together else None)
    turns = [pid for pid, _ in itertools.groupby((tmp_path / "child-log").read_text().split())]
    four = list(dict.fromkeys(turns))
    assert len(four) == 4
    if together:  # warm up, texts of three, three times two widths of AR and its twin, twice two widths of three
        three = turns[-3:]
        assert turns[-12:] == three * 4
        ar, twin = turns[-24:-22]
        assert turns[-24:-12] == [ar, twin] * 6 and turns[-27:-24] == three and ar == three[0] and twin not in three
    else:
        assert turns == four, "an engine was measured while another was"
    child = int((tmp_path / "child").read_text())
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_too_few_prompts_are_said_and_a_log_without_a_traceback_is_shown(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text('{"eos_token_id": 2}')
    (tmp_path / "ids.json").write_text(json.dumps({"held": [[5, 6]] * 3}))
    argv = [sys.executable, str(ROOT / "examples" / "testbed" / "serve.py"), "--target", str(tmp_path / "target")]
    argv += ["--prompts", str(tmp_path / "ids.json"), "--out", str(tmp_path / "r.json"), "--systems", "ar"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert "ids.json: 3 prompts are too few for 24 at a time" in done.stdout
    assert "failed_after_s" in json.loads((tmp_path / "r.json").read_text())["systems"]["ar"]


def test_a_traceback_and_the_end_of_a_log_are_shown(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "testbed"))
    from running import Running

    code = "import sys; print('begun', file=sys.stderr); [print(n, file=sys.stderr) for n in range(99)]; 1 / 0"
    engine = Running([sys.executable, "-c", code], tmp_path / "log")
    assert engine.answer("READY", time.monotonic() + 30) is None
    engine.close()
    assert engine.ended and engine.fault().splitlines()[0].startswith("Traceback") and "begun" not in engine.fault()
    assert "ZeroDivisionError" in engine.fault()
