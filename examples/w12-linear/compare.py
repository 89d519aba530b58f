"""Stock SGLang against `w12-linear` on one Hopper GPU: bits, step times, KV tokens, start-up. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specpilot_cli.deployment import Request, load_deployment, load_requests
from specpilot_cli.engine.flags import autoregressive, without
from specpilot_cli.engine.sglang import place
from specpilot_cli.engine.sglang.adapter import SglangAdapter
from specpilot_cli.engine.sglang.server import SglangServer
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.room import open_room
from specpilot_cli.profiling.sglang_run import profiled_steps

HERE = Path(__file__).resolve().parent
DEPLOYMENT = "dense8b__dflash__h200-sxm__r1"
ROWS = (1, 8, 32)
TOKENS, REPEATS = (8, 72), 5
AT_ONCE = ("--max-running-requests", "32", "--cuda-graph-max-bs-decode", "32")
SMALL_POOL = ("--max-total-tokens", "16384")  # several servers side by side
W12, NOT_EARLY = ("--quantization", "w12"), ("@env:SGLANG_W12_EARLY=0",)
BEGIN = time.perf_counter()


def say(*words: object) -> None:
    """One line with the time since the start."""
    print(f"[{time.perf_counter() - BEGIN:5.0f} s]", *words, flush=True)


def prompts(server: SglangServer, count: int, joined: int = 1) -> list[Request]:
    """Random prompts: of 128 tokens, or several of those joined; ids folded into the model's vocabulary."""
    vocabulary = int(server.info()["vocab_size"])
    found = load_requests("sglang-random", "develop", count * joined).requests
    groups = [found[i * joined : (i + 1) * joined] for i in range(count)]
    ids = [tuple(token % vocabulary for request in group for token in request.input_ids) for group in groups]
    return [group[0].model_copy(update={"input_ids": i}) for group, i in zip(groups, ids, strict=True)]


@contextmanager
def running(worktree: Path, args: Sequence[str], log: Path) -> Iterator[SglangServer]:
    """A server; says how long it took to be ready, what its weights take and how many tokens its KV pool holds."""
    begin = time.perf_counter()
    server = SglangAdapter().launch(worktree, args, log=log, timeout_s=400)
    try:
        ready = time.perf_counter() - begin
        info = server.info()
        loaded = next((line for line in log.read_text(errors="replace").splitlines() if "Load weight end" in line), "")
        say(f"{log.stem}: ready after {ready:.1f} s, KV pool {info.get('max_total_num_tokens')} tokens")
        say(f"{log.stem}: {loaded[loaded.find('Load weight end') :][:200]}")
        yield server
    finally:
        server.close()


def prefill(server: SglangServer, asked: Sequence[Request]) -> list[list[float]]:
    """Log-probabilities of the prompts' own tokens: prefill alone."""
    found = []
    for prompt in asked:
        body = {
            "input_ids": list(prompt.input_ids),
            "sampling_params": {"temperature": 0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        items = server._json("POST", "/generate", body)["meta_info"]["input_token_logprobs"]
        found.append([item[0] for item in items if item[0] is not None])
    return found


def greedy(
    server: SglangServer, asked: Sequence[Request], tokens: int, *, at_once: bool = False
) -> list[dict[str, Any]]:
    """Greedy continuations, one request at a time or all at once, with the two best log-probabilities of every step."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    ids = [list(request.input_ids) for request in asked]
    found = []
    for group in [ids] if at_once else [[one] for one in ids]:
        body = {"input_ids": group, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 2}
        for answer in server._json("POST", "/generate", body):
            top = answer["meta_info"]["output_top_logprobs"]
            found.append({"ids": answer["output_ids"], "margins": [step[0][0] - step[1][0] for step in top]})
    return found


def compare(stock: list[dict[str, Any]], ours: list[dict[str, Any]]) -> str:
    """Where greedy texts part, and by how little stock preferred its own token there."""
    same, total, margins = 0, 0, []
    for one, two in zip(stock, ours, strict=True):
        pairs = list(zip(one["ids"], two["ids"], strict=True))
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        same, total = same + first, total + len(pairs)
        if first < len(pairs):
            margins.append(round(one["margins"][first], 4))
    return f"{same} of {total} tokens before the first difference; stock's margins there, in nats: {margins or 'none'}"


def step_ms(server: SglangServer, asked: Sequence[Request]) -> list[float]:
    """AR step times of a batch: what a long output takes more than a short one, for each step more."""

    def wall_s(tokens: int) -> float:
        return server.generate([request.input_ids for request in asked], tokens, ignore_eos=True)[0].wall_s

    wall_s(TOKENS[0])  # a new batch size may compile kernels
    gaps = [wall_s(TOKENS[1]) - wall_s(TOKENS[0]) for _ in range(REPEATS)]
    return [gap / (TOKENS[1] - TOKENS[0]) * 1e3 for gap in gaps]


def measured(server: SglangServer) -> dict[str, Any]:
    """What is compared of an AR server."""
    found: dict[str, Any] = {"prefill": prefill(server, prompts(server, 3, joined=6))}
    asked = prompts(server, max(ROWS))
    found["ms"] = {rows: step_ms(server, asked[:rows]) for rows in ROWS}
    say("step ms:", {rows: [round(value, 3) for value in ms] for rows, ms in found["ms"].items()})
    found["text"] = greedy(server, prompts(server, 12), 64)
    return found


def dflash(server: SglangServer) -> dict[str, Any]:
    """Streamed step times and outputs of one request at a time."""
    asked = prompts(server, 4)
    server.stream(asked[0].input_ids, 64)
    streams = [server.stream(request.input_ids, 256) for request in asked]
    steps = [ms for s in streams for ms in s.step_ms]
    accepted = sum(s.generation.correct_drafts for s in streams) / sum(s.generation.verify_steps for s in streams)
    return {"ms": float(np.mean(steps)), "tau": 1 + accepted, "ids": [s.generation.output_ids for s in streams]}


def checkpoint(folder: Path) -> Path:
    """Gaussian weights of the 8B shape as a checkpoint, 16 GB: real loading, escapes as they come, margins to lose."""
    done = subprocess.run([sys.executable, str(HERE / "checkpoint.py"), str(folder)], check=True, capture_output=True)
    say("checkpoint:", done.stdout.decode().strip())
    return folder


def with_weights(args: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """A deployment's flags with the target's weights from a folder."""
    kept = without(args, "--load-format")
    at = kept.index("--model-path") + 1
    return (*kept[:at], str(folder), *kept[at + 1 :])


def check(worktree: Path) -> str:
    """`check.py` in the patched engine, which also compiles the kernels into its cache."""
    env = place.environment(place.package_root(worktree), place.kernel_cache(worktree), {})
    kept = {**os.environ, **env, "PYTHONSAFEPATH": ""}
    done = subprocess.run(
        [place.python(), str(HERE / "check.py")], env=kept, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    text = done.stdout.decode(errors="replace")
    lines = [line for line in text.splitlines() if line.startswith("check:")]
    if done.returncode:
        lines.append(f"check.py FAILED with {done.returncode}: {text[-3000:]}")
    return "\n".join(lines)


def say_ar(base: dict[str, Any], made: dict[str, Any], folder: Path) -> None:
    """Results of two AR servers."""
    for rows in ROWS:
        one, two = float(np.median(base["ms"][rows])), float(np.median(made["ms"][rows]))
        say(f"RESULT AR step at {rows} requests: stock {one:.3f} ms, w12 {two:.3f} ms, {one / two:.3f}x")
    same = [one == two for one, two in zip(base["prefill"], made["prefill"], strict=True)]
    say(f"RESULT prefill of 768 tokens: {sum(same)} of {len(same)} prompts bit-identical log-probabilities")
    say("RESULT greedy AR:", compare(base["text"], made["text"]))
    (folder / "ar.json").write_text(json.dumps({"stock": base["ms"], "w12": made["ms"]}))


def say_dflash(one: SglangServer, two: SglangServer) -> None:
    """DFLASH servers timed in turn, A B B A."""
    runs = [("stock", one), ("w12", two), ("w12", two), ("stock", one)]
    found: dict[str, list[float]] = {"stock": [], "w12": []}
    for name, server in runs:
        result = dflash(server)
        found[name].append(result["ms"])
        say(f"DFLASH {name}: {result['ms']:.3f} ms a step, tau {result['tau']:.3f}")
    say(f"RESULT DFLASH step at 1 request: {sum(found['stock']) / sum(found['w12']):.3f}x")


def say_kernels(name: str, server: SglangServer, folder: Path, at_once: int = 1) -> list[tuple[float, float, str]]:
    """Where an AR step of so many requests goes: microseconds and launches a step by kernel, the longest first.

    An instant is shared equally among the kernels in it. The longest dozen are said.
    """
    kept = folder / f"{name}-{at_once}-trace"
    kept.mkdir(exist_ok=True)
    steps = profiled_steps(server, prompts(server, 2 * at_once), at_once, kept)
    total: dict[str, list[float]] = {}
    for kernel in (kernel for step in steps for kernel in step.kernels):
        total.setdefault(kernel.name[:90], []).append(kernel.share_us)
    rows = [(sum(us) / len(steps), len(us) / len(steps), kernel) for kernel, us in total.items()]
    rows.sort(reverse=True)
    say(f"KERNELS {name} at {at_once}: {np.mean([step.busy_us for step in steps]):.0f} us busy, {len(steps)} steps")
    for us, launches, kernel_name in rows[:12]:
        say(f"  {us:8.1f} us {launches:6.1f} x {kernel_name}")
    return rows


Arm = tuple[str, Path, tuple[str, ...]]
"""Name, tree, flags."""


def started(servers: ExitStack, arms: Sequence[Arm], folder: Path) -> list[SglangServer]:
    """Servers started at once; an idle one sleeps, so they can be timed in turn."""

    def start(arm: Arm) -> SglangServer:
        name, tree, flags = arm
        return servers.enter_context(running(tree, (*flags, *SMALL_POOL), folder / f"{name}.log"))

    # an engine ends with the thread that started it, so the threads stay until the servers are closed
    pool = servers.enter_context(ThreadPoolExecutor(len(arms)))
    return list(pool.map(start, arms))


def compared_ar(stock: SglangServer, ours: SglangServer, plain: SglangServer | None, folder: Path) -> None:
    """Two AR servers that run side by side, and the patched one without early launches."""
    base = measured(stock)
    say_ar(base, measured(ours), folder)
    asked = prompts(stock, 12)
    say(
        "stock, 12 requests at once against one at a time:",
        compare(base["text"], greedy(stock, asked, 64, at_once=True)),
    )
    if plain is not None:
        medians = {r: round(float(np.median(step_ms(plain, prompts(plain, r)))), 3) for r in ROWS}
        say("RESULT w12 without early launches, step ms:", medians)
    for name, server in (("stock", stock), ("w12", ours)):
        say_kernels(name, server, folder)


def side_by_side(ar: Sequence[Arm], speculative: Sequence[Arm], folder: Path, *, plain: bool, pairs: bool) -> None:
    """Servers on one GPU at once, timed in turn: the shortest way, but start-up and KV pool say nothing.

    `pairs`: the DFLASH servers after the AR servers, where four do not fit.
    """
    late: list[Arm] = [(f"{name}-plain", tree, (*NOT_EARLY, *flags)) for name, tree, flags in ar[1:] if plain]
    with ExitStack() as servers:
        stock, ours, *rest = started(servers, (*ar, *late, *(() if pairs else speculative)), folder)
        if speculative and not pairs:
            say_dflash(*rest[-2:])
        compared_ar(stock, ours, rest[0] if late else None, folder)
    if speculative and pairs:
        with ExitStack() as servers:
            say_dflash(*started(servers, speculative, folder))


def one_by_one(ar: Sequence[Arm], speculative: Sequence[Arm], folder: Path) -> None:
    """AR servers one after the other, each with the GPU to itself; then the DFLASH pair."""
    results = []
    for name, tree, flags in ar:
        with running(tree, flags, folder / f"{name}.log") as server:
            results.append(measured(server))
    say_ar(results[0], results[1], folder)
    if speculative:
        with ExitStack() as servers:
            say_dflash(*started(servers, speculative, folder))


def main() -> None:
    """The whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stock", type=Path, help="made with `specpilot stock init`; default: made in the folder")
    parser.add_argument("--deployment", default=DEPLOYMENT)
    parser.add_argument("--as-deployed", action="store_true", help="the deployment's own weights, no Gaussian ones")
    parser.add_argument("--no-check", action="store_true", help="without the kernels alone")
    parser.add_argument("--together", action="store_true", help="all servers at once: no KV pool, no start-up times")
    parser.add_argument("--pairs", action="store_true", help="as --together, but DFLASH servers after the AR servers")
    parser.add_argument("--plain", action="store_true", help="with --together: also without early launches")
    parser.add_argument("--no-dflash", action="store_true")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    stock = options.stock or folder / "stock"
    if options.stock is None:
        from specpilot_cli.engine.sglang.source import init_sglang

        init_sglang(stock)
    made, ours = plan(open_room(None), ("w12-linear",), stock), folder / "w12"
    if not ours.exists():
        materialise(made, ours)
    say(f"applied: tree {made.composition.tree}, as recorded: {made.reproduces}")
    args = load_deployment(options.deployment).record.server_args
    with ThreadPoolExecutor(1) as pool:
        checked = None if options.no_check else pool.submit(check, ours)
        if not options.as_deployed:
            args = with_weights(args, checkpoint(folder / "checkpoint"))
        if checked is not None:
            print(checked.result(), flush=True)
    plain = (*autoregressive(args), *AT_ONCE)
    ar = [("stock-ar", stock, plain), ("w12-ar", ours, (*plain, *W12))]
    pair = [] if options.no_dflash else [("stock-dflash", stock, args), ("w12-dflash", ours, (*args, *W12))]
    if options.together or options.pairs:
        side_by_side(ar, pair, folder, plain=options.plain, pairs=options.pairs)
    else:
        one_by_one(ar, pair, folder)
    say("end")


if __name__ == "__main__":
    main()
