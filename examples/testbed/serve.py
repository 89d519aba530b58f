"""Acceptance and speed of the testbed's checkpoints on stock SGLang 0.5.20 (its offline Engine), one GPU.

    python examples/testbed/serve.py --target DIR --drafters DIR --prompts DIR --out FILE [--systems ar dflash2@8 ...]

Each system is a process of its own with a time limit; FILE is rewritten after each measurement. With --together all
engines start at once, on one GPU that has to hold them all, and take turns: all prompts of every set first (tau,
texts; with --framed also in other words, for tau by prompt in FILE's `-counts.json`), then steps, then --rounds times
one request, 8 and 24 at a time. `SYSTEM~random` is SYSTEM with random weights of the same shape and measures one thing:
--steps times in turn with SYSTEM, the time of a step where all requests take the same number of steps (`over_random`:
the median of the ratios). With --after engines start while other jobs
still use the GPU, and measure once those have ended. tau = 1 + correct drafts / verify steps, by the engine's counters.
`same_as_ar` counts texts that are AR's token for token: at BF16 they may part at near-ties, which is for `forced.py`
and `specpilot force-tokens` to judge, not for this script.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "tree")]

from framings import FRAMINGS  # noqa: E402
from measure import Answers, Measurement, steps_of, totals  # noqa: E402
from running import Running, answering, own_port, wait_for  # noqa: E402

from specpilot_cli.engine.sglang.deep_gemm_standin import SWITCH, environment  # noqa: E402

BASE: dict[str, Any] = {
    "attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "warning",
    "skip_tokenizer_init": True, "disable_radix_cache": True, "disable_prefill_cuda_graph": True, "page_size": 1,
    "min_free_slots_delay": 1, "context_length": 2048, "max_running_requests": 24, "cuda_graph_max_bs_decode": 24,
    "mem_fraction_static": 0.8, "random_seed": 0,
}  # fmt: skip
SYSTEMS = ("ar", "dflash2@8", "dflash2@16", "dspark@7", "eagle3@5")
"""Also `eagle3-chain@N`: N drafts in a row instead of a tree of 16 nodes."""
WIDTHS = (1, 8, 24)
"""Requests at a time, where speed is measured."""
STEPS = (16, 64)
"""Steps of the shorter and of the longer call whose difference is a step's time."""
RANDOM = "~random"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafters", type=Path, help="folder with one folder for each drafter")
    parser.add_argument("--prompts", type=Path, required=True, help="folder of *.jsonl, or a JSON file of token ids")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--framed", action="store_true", help="ask every prompt in all ways of framings.py, for tau")
    parser.add_argument("--start-s", type=float, default=240.0, help="limit for one system's start")
    parser.add_argument("--limit-s", type=float, default=150.0, help="limit for one measurement")
    parser.add_argument("--together", action="store_true", help="start all engines at once")
    parser.add_argument(
        "--after", type=Path, nargs="*", default=[], help="measure nothing before these files exist, --start-s at most"
    )
    parser.add_argument("--rounds", type=int, default=1, help="times that speed is measured")
    parser.add_argument("--steps", type=int, default=7, help="times that a step is measured beside random weights'")
    parser.add_argument(
        "--widths", type=int, nargs="*", default=WIDTHS, help="requests at a time; 1 takes eight prompts"
    )
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="more of SGLang's own settings")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def settings(options: argparse.Namespace, system: str) -> dict[str, Any]:
    """Engine arguments of a system."""
    if system.endswith(RANDOM):
        made = settings(options, system.removesuffix(RANDOM)) | {"load_format": "dummy"}
        return made | ({"speculative_draft_load_format": "dummy"} if "speculative_algorithm" in made else {})
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


def prompts_of(options: argparse.Namespace, form: str = "{}") -> dict[str, list[list[int]]]:
    """Token ids by set, of the prompts in this form."""
    if options.prompts.is_file():
        if form != "{}":
            raise SystemExit(f"{options.prompts} holds token ids: they cannot be asked in other words (--framed).")
        found: dict[str, list[list[int]]] = json.loads(options.prompts.read_text())
        return found
    from specpilot_cli.testbed.chat import chat_encoder

    encode, sets = chat_encoder(options.target), {}
    for path in sorted(options.prompts.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        sets[path.stem] = [encode(form.format(row["prompt"])) for row in rows]
    return sets


def counts_of(answers: Answers) -> list[tuple[int, int]]:
    """Verify steps and correct drafts of every answer (an answer of one token has no step); nothing of AR's."""
    meta = [answer["meta_info"] for answer in answers]
    found = [(m.get("spec_verify_ct") or 0, m.get("spec_num_correct_drafts") or 0) for m in meta]
    return found if any(steps for steps, _ in found) else []


class Served:
    """One engine in this process, and what it is asked for."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.sets = prompts_of(options)
        framed = FRAMINGS if options.framed and options.one != "ar" else {}
        self.framed = {label: prompts_of(options, form) for label, form in framed.items() if label}
        stop = json.loads((options.target / "config.json").read_bytes()).get("eos_token_id")
        stops = stop if isinstance(stop, list) else [stop]
        count = max(options.widths)
        rows = [ids for at in range(count) for prompts in self.sets.values() for ids in prompts[at : at + 1]]
        if len(rows) < count:
            raise SystemExit(f"{options.prompts}: {len(rows)} prompts are too few for {count} at a time (--widths).")
        import sglang

        self.lengths: dict[tuple[int, int], list[int]] = {}
        self.engine = sglang.Engine(**settings(options, options.one), **own_port())
        self.some = Measurement(self.engine, rows[:count], options.new_tokens, stops)
        self.some.generate(rows[:2], options.new_tokens)

    def all(self) -> dict[str, Any]:
        """Every set, 24 requests at a time or what the engine takes: counts, texts; of other framings only counts."""
        found: dict[str, Any] = {"sets": {}, "texts": {}, "counts": {}}
        for name, prompts in self.sets.items():
            answers, seconds = self.some.generate(prompts, self.some.new_tokens)
            found["sets"][name] = totals(answers, seconds)
            found["texts"][name] = [answer["output_ids"] for answer in answers]
            found["counts"][name] = {"": counts_of(answers)}
            for label, sets in self.framed.items():
                answers, _ = self.some.generate(sets[name], self.some.new_tokens)
                found["counts"][name][label] = counts_of(answers)
        return found

    def speed(self, width: str) -> dict[str, Any]:
        """So many requests at a time, the first of every set in turn."""
        return self.some.at(int(width))[1]

    def steps(self, width: str) -> dict[str, Any]:
        """Milliseconds a step of so many requests, all of them busy: a longer call less a shorter one.

        Both take about the same steps whatever is accepted, and what a call takes besides its steps is in both.
        """
        prompts, counts, seconds = self.some.prompts[: int(width)], [], []
        for wanted in STEPS:
            answers, took = self.some.generate(prompts, self._lengths(prompts, wanted), whole=True)
            counts.append([steps_of(answer) for answer in answers])
            seconds.append(took)
        more = max(counts[1]) - max(counts[0])
        if more <= 0:
            raise RuntimeError(f"{max(counts[0])} steps in the shorter call, {max(counts[1])} in the longer")
        ends = [[min(found), max(found)] for found in counts]
        return {"steps": more, "step_ms": round((seconds[1] - seconds[0]) / more * 1e3, 4), "ends": ends}

    def _lengths(self, prompts: list[list[int]], wanted: int) -> list[int]:
        """Tokens that each request takes in so many steps, so that all end together; found by asking, once."""
        key = len(prompts), wanted
        if key not in self.lengths:
            found = [wanted + 1] * len(prompts)
            for _ in range(3):  # accept lengths change along a text
                answers, _ = self.some.generate(prompts, found, whole=True)
                found = [1 + max(1, round((n - 1) * wanted / steps_of(a))) for n, a in zip(found, answers, strict=True)]
            self.lengths[key] = found
        return self.lengths[key]


def run_one(options: argparse.Namespace) -> None:
    """Serve until nothing more is asked for."""
    begun = time.perf_counter()
    served = Served(options)
    print(f"READY {time.perf_counter() - begun:.1f}", flush=True)
    answering({"all": served.all, "speed": served.speed, "steps": served.steps})
    served.engine.shutdown()


class Bench:
    """All systems of a call, what they said, and the file that holds it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.report: dict[str, Any] = {"systems": {}}
        if options.out.exists():
            self.report = json.loads(options.out.read_text())
        self.texts, self.kept = self._beside("texts")
        self.counts, self.counted = self._beside("counts")
        self.report.setdefault("settings", {}).update({s: settings(options, s) for s in options.systems})
        standin = environment(options.out.absolute().parent / "deep-gemm")
        self.report["deep_gemm"] = "stand-in, never called" if standin else "installed, its kernels switched off"
        self.env = {SWITCH: "0", **standin}  # of all systems: EAGLE-3's graphs cannot be captured without that package

    def _beside(self, what: str) -> tuple[dict[str, Any], Path]:
        """A file beside --out, and what an earlier call left in it."""
        path = self.options.out.with_name(f"{self.options.out.stem}-{what}.json")
        there = self.options.out.exists() and path.exists()
        return (json.loads(path.read_text()) if there else {}), path

    def run(self, systems: list[str]) -> None:
        """Start these at once, then let them take turns."""
        engines = {system: self._start(system) for system in systems}
        try:
            for system in systems:
                self._ready(system, engines)
            wait_for(self.options.after, self.options.start_s)
            self._in_turn([s for s in systems if not s.endswith(RANDOM)], engines)
            for system in list(engines):
                self._say(system)
        finally:
            for engine in engines.values():
                engine.close()

    def _in_turn(self, systems: list[str], engines: dict[str, Running]) -> None:
        words = [(system, "all") for system in systems]
        twins = [(system, system + RANDOM) for system in systems if system + RANDOM in engines]
        for _ in range(self.options.steps):
            words += [(one, f"steps {width}") for width in self.options.widths for pair in twins for one in pair]
        for _ in range(self.options.rounds):
            words += [(system, f"speed {width}") for width in self.options.widths for system in systems]
        for system, asked in words:
            if system in engines:
                self._take(system, engines, asked)

    def _start(self, system: str) -> Running:
        name = system.replace("@", "-").replace("~", "-")
        log = self.options.out.with_name(f"{self.options.out.stem}-{name}.log")
        self.report["systems"][system] = {}
        return Running([sys.executable, *sys.argv, "--one", system], log, self.env)

    def _ready(self, system: str, engines: dict[str, Running]) -> None:
        engine = engines[system]
        said = engine.answer("READY", engine.begun + self.options.start_s)
        if said is None:
            self._failed(system, engines)
        else:
            self.report["systems"][system]["start_s"] = float(said)

    def _take(self, system: str, engines: dict[str, Running], words: str) -> None:
        said, found = engines[system].ask(words, "FOUND", self.options.limit_s), self.report["systems"][system]
        if said is None:
            self._failed(system, engines)
            return
        got = json.loads(said)
        if words == "all":
            self.texts[system], self.counts[system] = got.pop("texts"), got.pop("counts")
            self.kept.write_text(json.dumps(self.texts))
            self.counted.write_text(json.dumps(self.counts) + "\n")
            found |= got
            if "ar" in self.texts:
                found["same_as_ar"] = same(self.texts["ar"], self.texts[system])
        else:
            kind, width = words.split()
            rounds = found.setdefault(kind, {}).setdefault(width, {"rounds": []})
            rounds["rounds"].append(got)
            for name in [n for n in ("tok_s", "decode_tok_s", "step_ms") if n in got]:
                rounds[name] = statistics.median(one[name] for one in rounds["rounds"])
        self._write()

    def _failed(self, system: str, engines: dict[str, Running]) -> None:
        engine = engines.pop(system)
        found = self.report["systems"][system]
        found |= {"failed_after_s": round(time.monotonic() - engine.begun, 1), "log": engine.log.name}
        print(f"{system} failed; its log:\n{engine.fault()}", flush=True)
        engine.close()
        self._write()

    def _write(self) -> None:
        self.report["over_random"] = over_random(self.report["systems"])
        self.options.out.write_text(json.dumps(self.report, indent=1) + "\n")

    def _say(self, system: str) -> None:
        shown = self.report["systems"][system]
        taus = {name: line["tau"] for name, line in shown.get("sets", {}).items()} | pooled(shown)
        speeds = {width: (line["tok_s"], line["step_ms"]) for width, line in shown.get("speed", {}).items()}
        print(system, taus, "tok/s and ms a step:", speeds, self.report["over_random"].get(system, ""), flush=True)


def over_random(systems: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Step times over those of random weights, by system and width: the median over the rounds of both."""
    found: dict[str, dict[str, float]] = {}
    for name in systems:
        ours, theirs = (systems.get(n, {}).get("steps", {}) for n in (name, name + RANDOM))
        for width in (w for w in ours if w in theirs):
            ratios = [
                a["step_ms"] / b["step_ms"]
                for a, b in zip(ours[width]["rounds"], theirs[width]["rounds"], strict=False)
            ]
            found.setdefault(name, {})[width] = round(statistics.median(ratios), 4)
    return found


def main() -> int:
    """All systems, each in a process of its own."""
    options = arguments()
    if options.one:
        run_one(options)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a time limit ends the engines too
    bench = Bench(options)
    for systems in [options.systems] if options.together else [[system] for system in options.systems]:
        bench.run(list(systems))
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
