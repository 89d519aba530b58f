"""Draft trees (`tree-core` and others) against stock SGLang on one GPU, with the offline Engine: texts, tau, steps.

    python examples/tree/h200.py --out OUT [--target DIR --drafters DIR --prompts DIR] [--stock DIR] [--systems ...]

Systems: `ar`, `dflash2@8` (stock, block 8), `dflash2@8+32` (tree of 32 nodes), `dflash2@8+32d` (DDTree's choice),
`dflash2@8+32b` (a beam's), `dflash2@8+32n7` (7 nodes from the request's own text at most; needs `--entries
tree-ngram`), `dflash2@8+32~8` (chains where more than 8 requests run), `dflash2@8+w12` and `dflash2@8+32n7+w12`
(packed weights; `--entries tree-ngram w12-linear`), `dspark@7` and so on. Without --target a made-up model serves
(`examples/05-sglang/ring.py`), whose text is known: the quickest way to see whether anything runs at all. All engines
start at once and are timed one after the other; each is a process of its own, and what it says (a traceback too) stands
in OUT/NAME.log. OUT/tree.json is rewritten as results come.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testbed"), str(HERE.parents[1])]

import running  # noqa: E402
from applied import engine_options, passed_on, worktrees  # noqa: E402
from measure import ALONE, Measurement  # noqa: E402
from measure import counted as counted  # noqa: E402

BASE: dict[str, Any] = {
    "attention_backend": "triton", "sampling_backend": "pytorch", "grammar_backend": "none", "log_level": "info",
    "skip_tokenizer_init": True, "disable_radix_cache": True, "disable_prefill_cuda_graph": True, "page_size": 1,
    "min_free_slots_delay": 1, "context_length": 2048, "max_running_requests": 24, "cuda_graph_max_bs_decode": 24,
    "mem_fraction_static": 0.8, "random_seed": 0, "max_total_tokens": 65536, "sleep_on_idle": True,
}  # fmt: skip
SYSTEMS = (
    "ar", "dflash2@8", "dflash2@8+32", "dspark@7", "dspark@7+32", "dflash2@8+32d", "dflash2@16+32",
)  # fmt: skip
NAME = re.compile(
    r"(?P<drafter>dflash2|dspark)@(?P<block>\d+)"
    r"(\+(?P<nodes>\d+)(?P<mode>[db]?)(n(?P<chain>\d+))?(~(?P<most>\d+))?)?"
)
W12 = "+w12"
"""Ends the name of a system whose weights are packed while loading (`--entries ... w12-linear`)."""
MODES = {"": "best-first", "d": "ddtree", "b": "beam"}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine_options(parser, entry="tree-core", work="/tmp/tree-work", limit_s=45.0)
    parser.add_argument("--systems", nargs="*", default=SYSTEMS)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 8, 24], help="requests at a time")
    parser.add_argument("--devices", nargs="*", default=[], help="GPUs that the systems take in turn")
    parser.add_argument("--start-s", type=float, default=170.0, help="limit until all engines are ready")
    parser.add_argument("--go-on", action="store_true", help="keep what --out has of other systems, AR's texts too")
    parser.add_argument("--profile", nargs="*", default=[], help="systems of which a step is profiled afterwards")
    return parser.parse_args()


def settings(options: argparse.Namespace, system: str) -> dict[str, Any]:
    """Engine arguments of a system."""
    more = {key: json.loads(value) for key, _, value in (text.partition("=") for text in options.set)}
    made = {**BASE, "model_path": str(options.target), **more}
    if system.endswith(W12):
        system, made["quantization"] = system.removesuffix(W12), "w12"
    if system == "ar":
        return made
    found = NAME.fullmatch(system)
    if found is None:
        raise SystemExit(f"unknown system {system}")
    drafter, block, nodes = found["drafter"], int(found["block"]), found["nodes"]
    made |= {
        "speculative_draft_model_path": str(options.drafters / drafter),
        "speculative_draft_attention_backend": made["attention_backend"],
        "speculative_algorithm": "DFLASH" if drafter == "dflash2" else "DSPARK",
        f"speculative_{drafter.removesuffix('2')}_block_size": block,
    }
    if nodes:
        made["speculative_tree_nodes"] = int(nodes)
        made["speculative_tree_mode"] = MODES[found["mode"]]
        made["speculative_tree_max_requests"] = int(found["most"] or 0)
    if found["chain"]:
        made["speculative_tree_ngram"] = int(found["chain"])
    return made


def prompts_of(options: argparse.Namespace) -> list[list[int]]:
    """Token ids, as many as requests, in turn from every file of the prompts."""
    if options.prompts is None:
        return [[3 + n, 5 + n, 7 + n] for n in range(options.requests)]
    if options.prompts.is_file():
        found: list[list[int]] = json.loads(options.prompts.read_text())
        return found[: options.requests]
    from specpilot_cli.testbed.chat import chat_encoder

    encode = chat_encoder(options.target)
    files = [path.read_text(encoding="utf-8").splitlines() for path in sorted(options.prompts.glob("*.jsonl"))]
    rows = [lines[n] for n in range(options.requests) for lines in files if n < len(lines)]
    return [encode(json.loads(row)["prompt"]) for row in rows[: options.requests]]


def run_one(options: argparse.Namespace) -> None:
    """One engine in this process: READY, then FOUND for every line on stdin."""
    import sglang

    begun = time.perf_counter()
    engine = sglang.Engine(**settings(options, options.one), **running.own_port())
    print(f"READY {time.perf_counter() - begun:.1f}", flush=True)
    prompts = prompts_of(options)
    eos = json.loads((options.target / "config.json").read_bytes()).get("eos_token_id")
    stops = [] if eos is None or options.prompts is None else eos if isinstance(eos, list) else [eos]
    measurement = Measurement(engine, prompts, options.new_tokens, stops)
    for line in sys.stdin:
        if line.strip() == "profile":
            folder = options.work / f"trace-{options.one}"
            print("FOUND " + json.dumps(measurement.profile(folder)), flush=True)
            continue
        found = measurement.all(options.widths)
        state = engine.get_server_info()
        found["memory"] = {k: state.get(k) for k in ("max_total_num_tokens",)}
        found["memory_usage_gb"] = (state.get("internal_states") or [{}])[0].get("memory_usage")
        print("FOUND " + json.dumps(found), flush=True)
    engine.shutdown()


class Running(running.Running):
    """An engine in its own process group; ends with `close`."""

    def __init__(
        self,
        options: argparse.Namespace,
        system: str,
        worktree: Path,
        device: str | None,
        script: Path = Path(__file__),
        words: list[str] | None = None,
        more: dict[str, str] | None = None,
    ) -> None:
        """script, words: another program with an option --one, and its other options. more: of its environment."""
        self.system = system
        env = {"PYTHONDONTWRITEBYTECODE": "1", "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1"}
        env |= {**({} if device is None else {"CUDA_VISIBLE_DEVICES": device}), **(more or {})}
        env["PYTHONPATH"] = os.pathsep.join([str(worktree), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        given = passed_on(options) if words is None else words
        argv = [sys.executable, str(script.resolve()), *given, "--one", system]
        super().__init__(argv, options.out / f"{re.sub('[@+/~]', '-', system)}.log", env)


def ring(options: argparse.Namespace) -> dict[str, Any]:
    """Checkpoints of a target and drafters by construction, in --work; the texts that are right."""
    sys.path.append(str(HERE.parents[0] / "05-sglang"))
    import ring as made_up

    folder = options.work / "ring"
    made = made_up.Ring(hidden=1024, heads=8, kv_heads=4, head_dim=128)
    if not folder.exists():
        made_up.write(made, folder)
    options.target, options.drafters = folder / "target", folder
    right = [made.text(prompt[-1], options.new_tokens) for prompt in prompts_of(options)]
    return {"ring": {"alone": right[:ALONE], "together": right}}


def parted(one: list[list[int]], other: list[list[int]]) -> str:
    """How many texts are the same, and where the others part."""
    firsts = []
    for a, b in zip(one, other, strict=True):
        if a != b:
            length = min(len(a), len(b))
            firsts.append(next((i for i in range(length) if a[i] != b[i]), length))
    return f"{len(one) - len(firsts)} of {len(one)} the same" + (f", parting at {firsts}" if firsts else "")


def said(system: str, found: dict[str, Any], texts: dict[str, Any]) -> str:
    """One line for people."""
    widths = [width for width in found if width.isdecimal()]
    words = [f"{system}: tau {found[widths[0]]['tau']}"]
    for width, at in ((width, found[width]) for width in widths):
        words.append(f"{width}: {at['decode_tok_s']} tok/s, {at['step_ms']} ms a step (tau {at['tau']})")
    words.append(f"whole texts: tau {found['whole']['tau']}")
    for other in ("ring", "ar", system.partition("+")[0]):
        if other in texts and other != system:
            sets = [name for name in ("alone", "together") if name in texts[other] and name in texts[system]]
            parts = [f"{parted(texts[other][name], texts[system][name])} {name}" for name in sets]
            words.append(f"texts of {other}: {'; '.join(parts)}")
    return "; ".join(words)


def main() -> int:
    """All engines at once, timed in turn."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        run_one(options)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: no engine may stay on the GPU
    begun = time.monotonic()
    stock, ours = worktrees(options)
    texts: dict[str, Any] = ring(options) if options.target is None else {}
    report: dict[str, Any] = {"settings": {s: settings(options, s) for s in options.systems}, "systems": {}}
    if options.go_on:
        before = json.loads((options.out / "tree.json").read_text())
        report = {key: before[key] | report[key] for key in report}
        texts |= json.loads((options.out / "texts.json").read_text())
    devices = itertools.cycle(options.devices or [None])
    engines = [
        Running(options, system, ours if "+" in system else stock, device)
        for system, device in zip(options.systems, devices, strict=False)
    ]
    try:
        until = time.monotonic() + options.start_s
        for engine in engines:
            ready = engine.answer("READY", until)
            report["systems"][engine.system] = {"ready_s": ready}
            if ready is None:
                report["systems"][engine.system]["fault"] = engine.fault()
                print(f"{engine.system} DID NOT START; its log:\n{engine.fault()}", flush=True)
                engine.close()
            write(options, report, texts)
        for engine in [e for e in engines if e.process.poll() is None]:
            print(f"[{time.monotonic() - begun:.0f} s] {engine.system}", flush=True)
            take(options, engine, report, texts)
        for engine in [e for e in engines if e.system in options.profile and e.process.poll() is None]:
            engine.say("profile")
            answer = engine.answer("FOUND", time.monotonic() + options.limit_s)
            report["systems"][engine.system]["profile"] = None if answer is None else json.loads(answer)
            write(options, report, texts)
    finally:
        for engine in engines:
            engine.close()
    print(f"[{time.monotonic() - begun:.0f} s] end", flush=True)
    return 0


def take(options: argparse.Namespace, engine: Running, report: dict[str, Any], texts: dict[str, Any]) -> None:
    """One engine's measurement, into the report."""
    engine.say("measure")
    answer = engine.answer("FOUND", time.monotonic() + options.limit_s)
    if answer is None:
        report["systems"][engine.system]["fault"] = engine.fault()
        print(
            f"{engine.system} ended, or said nothing for {options.limit_s:.0f} s; its log:\n{engine.fault()}",
            flush=True,
        )
        engine.close()
    else:
        found = json.loads(answer)
        alone, together = found.pop("texts_alone", None), found.pop("texts")
        texts[engine.system] = {**({} if alone is None else {"alone": alone}), "together": together}
        report["systems"][engine.system] |= found
        print(said(engine.system, found, texts), flush=True)
    write(options, report, texts)


def write(options: argparse.Namespace, report: dict[str, Any], texts: dict[str, Any]) -> None:
    """What is known so far."""
    (options.out / "tree.json").write_text(json.dumps(report, indent=1) + "\n")
    (options.out / "texts.json").write_text(json.dumps(texts))


if __name__ == "__main__":
    sys.exit(main())
