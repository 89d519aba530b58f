"""The serving script against a made-up engine: settings, counters, a system that hangs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
        each = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(input_ids)
        random, drafts = self.settings.get("load_format"), "speculative_algorithm" in self.settings
        found = []
        for number, (ids, sampling) in enumerate(zip(input_ids, each)):
            asked = sampling["max_new_tokens"]
            if not sampling["ignore_eos"]:  # texts of three tokens
                meta = {"completion_tokens": min(3, asked), "spec_verify_ct": 4, "spec_num_correct_drafts": 6}
            else:  # the random drafter accepts nothing, the other one draft a step, of the second request two
                pace = 1 if random else 2 + number
                meta = {"completion_tokens": asked, "spec_verify_ct": max(1, (asked - 1) // pace)}
            if not drafts:
                meta = {"completion_tokens": meta["completion_tokens"]}
            found.append({"output_ids": ids[:3], "meta_info": meta})
        steps = max(f["meta_info"].get("spec_verify_ct", f["meta_info"]["completion_tokens"]) for f in found)
        time.sleep(0.05 + 0.002 * steps * (2 if random else 1))
        return found
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
    argv += ["--systems", "ar", "ar~random", "dflash2@8", "dflash2@8~random", "eagle3-chain@5", "dspark@7"]
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
    assert "speed" not in systems["ar~random"] and "steps" not in systems["eagle3-chain@5"]
    both = {"ar", "dflash2@8"} if together else set()
    counts = json.loads((tmp_path / "r-counts.json").read_text())
    assert counts["dflash2@8"] == {"held": {"": [[4, 6]] * 3}} and counts["ar"] == {"held": {"": []}}
    assert report["over_random"].keys() == both, "twins are measured in turn, or not at all"
    if together:
        ours, theirs = ([one["step_ms"] for one in systems[n]["steps"]["1"]["rounds"]] for n in ("ar", "ar~random"))
        middle = sorted(a / b for a, b in zip(ours, theirs, strict=True))[1]
        assert abs(report["over_random"]["ar"]["1"] - middle) < 1e-4
        for name in ("ar", "dflash2@8", "dflash2@8~random"):
            for found in systems[name]["steps"]["2"]["rounds"]:  # both requests' ends, whatever each accepts
                assert found["steps"] == 48 and found["ends"] == [[16, 16], [64, 64]]
    assert settings["dflash2@8"]["speculative_dflash_block_size"] == 8 and settings["ar"]["page_size"] == 2
    assert settings["eagle3-chain@5"]["speculative_num_draft_tokens"] == 6
    assert settings["eagle3-chain@5"]["speculative_draft_model_path"] == str(tmp_path / "eagle3")
    assert settings["ar"].get("max_total_tokens") == (24 * 2048 if together else None)
    turns = [pid for pid, _ in itertools.groupby((tmp_path / "child-log").read_text().split())]
    five = list(dict.fromkeys(turns))
    assert len(five) == 5
    if together:  # warm up, texts of three, three times two widths of two and their twins, twice two widths of three
        three, pairs = turns[-3:], turns[-36:-32]
        assert turns[-12:] == three * 4 and turns[-39:-36] == three
        assert turns[-36:-12] == pairs * 6 and pairs[::2] == three[:2] and not {*pairs[1::2]} & {*three}
    else:
        assert turns == five, "an engine was measured while another was"
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


def test_prompts_in_other_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "testbed"))
    import serve

    for name in ("mbpp", "gsm8k"):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": f"{name}?"}) + "\n")
    monkeypatch.setattr("specpilot_cli.testbed.chat.chat_encoder", lambda _: lambda text: list(text.encode()))
    options: Any = SimpleNamespace(prompts=tmp_path, target=tmp_path)
    forms = serve.FRAMINGS
    asked = {label: serve.prompts_of(options, form) for label, form in forms.items()}
    assert list(asked[""]) == ["gsm8k", "mbpp"] and bytes(asked[""]["mbpp"][0]) == b"mbpp?"
    assert bytes(asked["brief"]["mbpp"][0]) == b"mbpp?\n\nBe brief."

    class Some:
        """Answers with as many steps as a prompt has tokens."""

        new_tokens = 3

        def generate(self, ids: list[list[int]], tokens: int) -> tuple[list[dict[str, Any]], float]:
            meta = [
                {"completion_tokens": tokens, "spec_verify_ct": len(row), "spec_num_correct_drafts": 1} for row in ids
            ]
            return [{"output_ids": row, "meta_info": m} for row, m in zip(ids, meta, strict=True)], 1.0

    served = object.__new__(serve.Served)
    some: Any = Some()
    served.sets, served.some, served.framed = asked[""], some, {k: v for k, v in asked.items() if k}
    found = served.all()
    lengths = {label: [(len(asked[label]["mbpp"][0]), 1)] for label in forms}
    assert found["counts"]["mbpp"] == lengths and found["sets"]["mbpp"]["verify_steps"] == 5
    assert found["texts"]["mbpp"] == [list(b"mbpp?")]
    short: Any = [{"meta_info": {"completion_tokens": 1}}, {"meta_info": {"spec_verify_ct": 2}}]
    assert serve.counts_of(short) == [(0, 0), (2, 0)] and serve.counts_of(short[:1]) == []
    (ids := tmp_path / "ids.json").write_text("{}")
    with pytest.raises(SystemExit, match=r"cannot be asked in other words \(--framed\)"):
        serve.prompts_of(SimpleNamespace(prompts=ids), forms["brief"])  # type: ignore[arg-type]


def test_a_traceback_and_the_end_of_a_log_are_shown(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT / "examples" / "testbed"))
    from running import Running

    code = "import sys; print('begun', file=sys.stderr); [print(n, file=sys.stderr) for n in range(99)]; 1 / 0"
    engine = Running([sys.executable, "-c", code], tmp_path / "log")
    assert engine.answer("READY", time.monotonic() + 30) is None
    engine.close()
    assert engine.ended and engine.fault().splitlines()[0].startswith("Traceback") and "begun" not in engine.fault()
    assert "ZeroDivisionError" in engine.fault()


def test_a_step_is_what_a_longer_call_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "testbed"))
    import serve

    class Some:
        """The first request commits three tokens a step, the second one; a call takes 70 ms and 2 ms a step."""

        prompts = ([1], [2])

        def generate(self, ids: list[list[int]], tokens: list[int], whole: bool) -> tuple[list[dict[str, Any]], float]:
            assert whole and len(ids) == len(tokens) == 2
            steps = [-(-(n - 1) // pace) for n, pace in zip(tokens, (3, 1), strict=True)]
            meta = [{"completion_tokens": n, "spec_verify_ct": k} for n, k in zip(tokens, steps, strict=True)]
            return [{"meta_info": m} for m in meta], 0.070 + 0.002 * max(steps)

    served = object.__new__(serve.Served)
    some: Any = Some()
    served.some, served.lengths = some, {}
    assert served.steps("2") == {"steps": 48, "step_ms": 2.0, "ends": [[16, 16], [64, 64]]}
    assert served.lengths[2, 64] == [1 + 3 * 64, 1 + 64]
    monkeypatch.setattr(serve, "STEPS", (16, 16))
    with pytest.raises(RuntimeError, match="16 steps in the shorter call"):
        served.steps("2")
