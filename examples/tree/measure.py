"""What one engine of `h200.py` measures: texts, tau, times of steps, and where a step's time goes."""

from __future__ import annotations

import gzip
import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ALONE = 8
"""So many requests are taken one at a time."""
Answers = list[dict[str, Any]]
Sums = dict[str, tuple[float, int]]
"""Microseconds and launches, by kernel."""


def totals(answers: Answers, seconds: float) -> dict[str, Any]:
    """Rates and counters of calls that took `seconds`; tau = 1 + correct drafts / verify steps, None without drafts."""
    meta = [answer["meta_info"] for answer in answers]
    tokens = sum(m["completion_tokens"] for m in meta)
    verify = sum(m.get("spec_verify_ct") or 0 for m in meta)
    correct = sum(m.get("spec_num_correct_drafts") or 0 for m in meta)
    tau = round(1 + correct / verify, 4) if verify else None
    rates = {"tokens": tokens, "seconds": round(seconds, 4), "tok_s": round(tokens / seconds, 1)}
    return {**rates, "verify_steps": verify, "correct_drafts": correct, "tau": tau}


def counted(answers: Answers, seconds: float, first_s: float) -> dict[str, Any]:
    """The same, and the rate without the first tokens, which alone take `first_s`."""
    found = totals(answers, seconds)
    behind = round((found["tokens"] - len(answers)) / (seconds - first_s), 1)
    return {**found, "first_token_s": round(first_s, 4), "decode_tok_s": behind}


class Measurement:
    """An engine and the prompts that it answers greedily."""

    def __init__(self, engine: Any, prompts: list[list[int]], new_tokens: int, stops: list[int]) -> None:
        self.engine, self.prompts, self.new_tokens, self.stops = engine, prompts, new_tokens, stops

    def generate(self, ids: list[list[int]], tokens: int | list[int], whole: bool = False) -> tuple[Answers, float]:
        """Answers and seconds; tokens of all or of each; whole: on behind the answer's end."""
        base: dict[str, Any] = {"temperature": 0, "ignore_eos": whole}
        base |= {} if whole else {"stop_token_ids": self.stops}
        each = [base | {"max_new_tokens": count} for count in (tokens if isinstance(tokens, list) else [tokens])]
        sampling = each if isinstance(tokens, list) else each[0]
        begun = time.perf_counter()
        answers: Answers = self.engine.generate(input_ids=ids, sampling_params=sampling)
        return answers, time.perf_counter() - begun

    def at(self, width: int) -> tuple[Answers, dict[str, Any]]:
        """So many requests at a time; what is left over of them by the width is not asked."""
        prompts = self.prompts[:ALONE] if width == 1 else self.prompts[: len(self.prompts) // width * width]
        groups = [prompts[at : at + width] for at in range(0, len(prompts), width)]
        self.generate(groups[0], 16)
        firsts = sum(self.generate(group, 1)[1] for group in groups)
        done = [self.generate(group, self.new_tokens) for group in groups]
        answers, seconds = [a for part, _ in done for a in part], sum(s for _, s in done)
        found = counted(answers, seconds, firsts)
        # the requests of a group do not end together: its longest one says how many steps it took
        steps = sum(max(steps_of(answer) for answer in part) for part, _ in done)
        found["step_ms"] = round((seconds - firsts) / steps * 1e3, 4)
        return answers, found

    def all(self, widths: Sequence[int]) -> dict[str, Any]:
        """Every width that there are requests for, texts alone and together, and all of full length together."""
        found: dict[str, Any] = {}
        widths = [width for width in widths if width <= len(self.prompts)]
        for width in widths:
            answers, found[str(width)] = self.at(width)
            if width == 1:
                found["texts_alone"] = [answer["output_ids"] for answer in answers]
            if width == max(widths):
                found["texts"] = [answer["output_ids"] for answer in answers]
        answers, seconds = self.generate(self.prompts, self.new_tokens, whole=True)
        found["whole"] = counted(answers, seconds, 0.0)
        return found

    def profile(self, folder: Path) -> dict[str, Any]:
        """GPU time a step of one request by kernel, in microseconds, the largest first.

        What a request of one token takes, its prefill, is taken off: systems differ in steps, which would share it.
        """
        self.generate(self.prompts[:1], 32)
        first, _ = self.traced(folder / "first", 1)
        whole, answers = self.traced(folder / "whole", 96)
        return per_step(whole, first, steps_of(answers[0]))

    def traced(self, folder: Path, tokens: int) -> tuple[Sums, Answers]:
        """Kernels of one answer of so many tokens, the engine's profiler writing into `folder`."""
        shutil.rmtree(folder, ignore_errors=True)
        self.engine.start_profile(
            output_dir=str(folder), activities=["GPU"], num_steps=None, with_stack=False, record_shapes=False
        )
        answers, _ = self.generate(self.prompts[:1], tokens, whole=True)
        self.engine.stop_profile()
        return kernels(folder), answers


def steps_of(answer: dict[str, Any]) -> int:
    """Steps of a request behind its first token."""
    meta = answer["meta_info"]
    return int(meta.get("spec_verify_ct") or meta["completion_tokens"] - 1)


def kernels(folder: Path) -> Sums:
    """Microseconds and launches by kernel, over the traces in a folder."""
    found: Sums = {}
    until = time.monotonic() + 20  # the scheduler writes it after it has answered
    while not (traces := sorted(folder.rglob("*.trace.json.gz"))) and time.monotonic() < until:
        time.sleep(0.5)
    time.sleep(1.0)
    for path in traces:
        for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
            if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
                us, launches = found.get(event["name"][:120], (0.0, 0))
                found[event["name"][:120]] = (us + event["dur"], launches + 1)
    return found


def per_step(whole: Sums, first: Sums, steps: int) -> dict[str, Any]:
    """What `whole` has beyond `first`, a step: the longest 60 (microseconds, launches, kernel), and sums of all."""
    less = {
        name: (us - first.get(name, (0.0, 0))[0], n - first.get(name, (0.0, 0))[1]) for name, (us, n) in whole.items()
    }
    rows = [(round(us / steps, 2), round(n / steps, 2), name) for name, (us, n) in less.items() if n > 0]
    return {
        "steps": steps,
        "gpu_us": round(sum(us for us, _ in less.values()) / steps, 1),
        "launches": round(sum(n for _, n in less.values()) / steps, 1),
        "kernels": sorted(rows, key=lambda row: -row[0])[:60],
    }
