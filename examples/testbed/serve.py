"""Acceptance and speed of the testbed's checkpoints on stock SGLang 0.5.20 (its offline Engine), one GPU.

    python examples/testbed/serve.py --target DIR --drafters DIR --prompts DIR --out FILE [--systems ar dflash2@8 ...]

Each system is a process of its own with a time limit; FILE is rewritten after each. With --together all engines start
at once, on one GPU that has to hold them all, and are measured one after the other. tau = 1 + correct drafts / verify
steps, from the engine's counters. `same_as_ar` counts texts that are AR's token for token: at BF16 they may part at
near-ties, which is for `specpilot force-tokens` to judge, not for this script.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

BASE: dict[str, Any] = {
    "attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "warning",
    "skip_tokenizer_init": True, "disable_radix_cache": True, "disable_prefill_cuda_graph": True, "page_size": 1,
    "min_free_slots_delay": 1, "context_length": 2048, "max_running_requests": 24, "cuda_graph_max_bs_decode": 24,
    "mem_fraction_static": 0.8, "random_seed": 0,
}  # fmt: skip
SYSTEMS = ("ar", "dflash2@8", "dflash2@16", "dspark@7", "eagle3@5")
"""Also `eagle3-chain@N`: N drafts in a row instead of a tree of 16 nodes."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafters", type=Path, help="folder with one folder for each drafter")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of *.jsonl, or a JSON file of token ids")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--limit-s", type=float, default=150.0, help="for one system, its start included")
    parser.add_argument("--together", action="store_true", help="start all engines at once")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="more of SGLang's own settings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def settings(options: argparse.Namespace, system: str) -> dict[str, Any]:
    """Engine arguments of a system."""
    name, _, width = system.partition("@")
    made = {**BASE, "model_path": str(options.target)}
    if options.together:  # or the first would take all memory for its KV cache
        made["max_total_tokens"] = made["max_running_requests"] * made["context_length"]
    made |= dict(_setting(s) for s in options.set)
    if name == "ar":
        return made
    draft = {
        "speculative_draft_model_path": str(options.drafters / name.removesuffix("-chain")),
        "speculative_draft_attention_backend": "triton",
    }
    if name == "dflash2":
        return made | draft | {"speculative_algorithm": "DFLASH", "speculative_dflash_block_size": int(width)}
    if name == "dspark":
        return made | draft | {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": int(width)}
    topk, nodes = (1, int(width) + 1) if name == "eagle3-chain" else (4, 16)
    tree = {"speculative_num_steps": int(width), "speculative_eagle_topk": topk, "speculative_num_draft_tokens": nodes}
    return made | draft | {"speculative_algorithm": "EAGLE3"} | tree


def _setting(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    return key, json.loads(value)


def prompts_of(options: argparse.Namespace) -> dict[str, list[list[int]]]:
    """Token ids by set."""
    if options.prompts.is_file():
        found: dict[str, list[list[int]]] = json.loads(options.prompts.read_text())
        return found
    from specpilot_cli.testbed.chat import chat_encoder

    encode, sets = chat_encoder(options.target), {}
    for path in sorted(options.prompts.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        sets[path.stem] = [encode(row["prompt"]) for row in rows]
    return sets


def counted(answers: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Rates and counters of one call."""
    meta = [a["meta_info"] for a in answers]
    tokens = sum(m["completion_tokens"] for m in meta)
    verify = sum(m.get("spec_verify_ct") or 0 for m in meta)
    correct = sum(m.get("spec_num_correct_drafts") or 0 for m in meta)
    tau = round(1 + correct / verify, 4) if verify else None
    rates = {"tokens": tokens, "seconds": round(seconds, 3), "tok_s": round(tokens / seconds, 1)}
    return {**rates, "verify_steps": verify, "correct_drafts": correct, "tau": tau}


def run_one(options: argparse.Namespace) -> None:
    """One system in this process: every set at 24 requests, then one set's prompts at 1, 8 and 24."""
    import sglang

    started = time.perf_counter()
    engine = sglang.Engine(**settings(options, options.one))
    found: dict[str, Any] = {"start_s": round(time.perf_counter() - started, 1), "sets": {}, "speed": {}, "texts": {}}
    stop = json.loads((options.target / "config.json").read_bytes()).get("eos_token_id")
    sampling = {"temperature": 0, "max_new_tokens": options.new_tokens}
    sampling["stop_token_ids"] = stop if isinstance(stop, list) else [stop]
    sets = prompts_of(options)

    def generate(prompts: list[list[int]]) -> tuple[list[dict[str, Any]], float]:
        begun = time.perf_counter()
        answers: list[dict[str, Any]] = engine.generate(input_ids=prompts, sampling_params=sampling)
        return answers, time.perf_counter() - begun

    with open(options.out.with_suffix(".turn"), "w") as turn:  # one engine is measured at a time
        fcntl.flock(turn, fcntl.LOCK_EX)
        generate(next(iter(sets.values()))[:2])
        for name, prompts in sets.items():
            answers, seconds = generate(prompts)
            found["sets"][name] = counted(answers, seconds)
            found["texts"][name] = [a["output_ids"] for a in answers]
        some = [p for prompts in sets.values() for p in prompts[:6]][:24]
        for width in (1, 8, 24):
            parts = [some[at : at + width] for at in range(0, len(some) if width > 1 else 8, width)]
            done = [generate(part) for part in parts]
            answers = [a for part, _ in done for a in part]
            found["speed"][str(width)] = counted(answers, sum(seconds for _, seconds in done))
    print("FOUND " + json.dumps(found), flush=True)
    engine.shutdown()


class Running:
    """A system's process; ends with everything it started."""

    def __init__(self, options: argparse.Namespace, system: str) -> None:
        self.begun, self.seconds = time.perf_counter(), options.limit_s
        self.log = options.out.with_name(f"{options.out.stem}-{system.replace('@', '-')}.log")
        self._errors: IO[str] = self.log.open("w")
        argv = [sys.executable, *sys.argv, "--one", system]
        self.process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=self._errors, text=True, start_new_session=True
        )

    def said(self) -> list[str]:
        """Lines of stdout, when it has ended; none when it took longer than its limit and was killed."""
        try:
            left = self.seconds - (time.perf_counter() - self.begun)
            return self.process.communicate(timeout=max(0.1, left))[0].splitlines()
        except subprocess.TimeoutExpired:
            return []
        finally:
            self.close()

    def close(self) -> None:
        """Kill what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._errors.close()


def main() -> int:
    """All systems, each in a process of its own."""
    options = arguments()
    if options.one:
        run_one(options)
        return 0
    report: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {"systems": {}}
    texts: dict[str, Any] = {}
    started = {system: Running(options, system) for system in options.systems if options.together}
    try:
        for system in options.systems:
            running = started.get(system) or Running(options, system)
            lines = [line for line in running.said() if line.startswith("FOUND ")]
            taken = round(time.perf_counter() - running.begun, 1)
            if not lines:
                report["systems"][system] = {"failed_after_s": taken, "log": running.log.name}
            else:
                found = json.loads(lines[0].removeprefix("FOUND "))
                texts[system] = found.pop("texts")
                if "ar" in texts:
                    found["same_as_ar"] = same(texts["ar"], texts[system])
                report["systems"][system] = found
            report["settings"] = {s: settings(options, s) for s in options.systems}
            options.out.write_text(json.dumps(report, indent=1) + "\n")
            shown = report["systems"][system]
            taus = {name: line["tau"] for name, line in shown.get("sets", {}).items()} | pooled(shown)
            speeds = {width: line["tok_s"] for width, line in shown.get("speed", {}).items()}
            print(system, taus or shown, speeds, f"{taken:.0f} s", flush=True)
    finally:
        for running in started.values():
            running.close()
    options.out.with_name(f"{options.out.stem}-texts.json").write_text(json.dumps(texts))
    return 0


def pooled(found: dict[str, Any]) -> dict[str, float]:
    """tau over the steps of all sets; nothing for AR or a system that failed."""
    steps = sum(line["verify_steps"] for line in found.get("sets", {}).values())
    correct = sum(line["correct_drafts"] for line in found.get("sets", {}).values())
    return {"all": round(1 + correct / steps, 4)} if steps else {}


def same(one: dict[str, Any], other: dict[str, Any]) -> dict[str, str]:
    """Texts that are equal token for token, by set."""
    return {k: f"{sum(a == b for a, b in zip(one[k], other[k], strict=True))} of {len(one[k])}" for k in one}


if __name__ == "__main__":
    sys.exit(main())
