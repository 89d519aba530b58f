"""Stock SGLang against `gdn-commit` on one H200: outputs, memory and step times at 1 and 24 requests. See README.md.

First `check.py` in the patched engine (bits and kernel times), then one server after the other. What was measured is
written as it comes; a server that fails is said and the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from specpilot_cli.core.paths import share_dir
from specpilot_cli.deployment import Request, load_deployment, load_requests
from specpilot_cli.engine.flags import without
from specpilot_cli.engine.sglang import place
from specpilot_cli.engine.sglang.adapter import SglangAdapter
from specpilot_cli.engine.sglang.server import SglangServer
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.room import open_room

HERE = Path(__file__).resolve().parent
DEPLOYMENT = "hyb27b__dflash2__h200-sxm__r1"
MANY = 24
AT_ONCE = ("--max-running-requests", str(MANY), "--cuda-graph-max-bs-decode", str(MANY))
# acceptance is forced; the tokens are the drafter's and the target's own, so that outputs depend on every state
REAL_TOKENS = ("@env:SGLANG_SIMULATE_ACC_TOKEN_MODE=real-draft-token",)
ARMS = {name: (f"@env:SGLANG_GDN_COMMIT={name}",) for name in ("cuda", "triton")}
ARMS["path"] = (*ARMS["cuda"], "@env:SGLANG_GDN_TREE=path")
ARMS |= {f"wy-{name}": (*ARMS["path"], f"@env:SGLANG_GDN_WY={name}") for name in ("cuda", "triton")}
ENTRIES = {"gdn-commit": ("cuda", "triton"), "gdn-path-verify": ("cuda", "triton", "path")}
ENTRIES["gdn-wy-verify"] = ("path", "wy-cuda", "wy-triton")
CONTRACTS = {"trees": "tree_routes.py", "wy": "wy_routes.py"}
TEXTS = ("one", "many", "one, logprobs", "many, logprobs")
TOKENS = {1: (32, 288), MANY: (32, 160)}
REPEATS = {1: 3, MANY: 2}
WORTH_SAYING = re.compile(
    r"Mamba Cache is allocated|gdn_commit:|KV Cache is allocated|Memory pool end|max_total_num_tokens="
)
SERVER_S = 75.0
"""Estimate of one more server, from its start to its end: none is begun with less left."""
CHECK_S = 150
BEGIN = time.perf_counter()


def say(*words: object) -> None:
    """One line with the time since the start."""
    print(f"[{time.perf_counter() - BEGIN:5.0f} s]", *words, flush=True)


def prompts(server: SglangServer, count: int) -> list[Request]:
    """Random prompts of 128 tokens, ids folded into the model's vocabulary."""
    vocabulary = int(server.info()["vocab_size"])
    found = load_requests("sglang-random", "develop", count).requests
    ids = [tuple(token % vocabulary for token in request.input_ids) for request in found]
    return [request.model_copy(update={"input_ids": i}) for request, i in zip(found, ids, strict=True)]


@contextmanager
def running(tree: Path, args: Sequence[str], log: Path) -> Iterator[SglangServer]:
    """A server; what its log says of memory is printed, also where it failed."""
    begin = time.perf_counter()
    server = None
    try:
        server = SglangAdapter().launch(tree, args, log=log, timeout_s=150)
        say(f"{log.stem}: ready after {time.perf_counter() - begin:.1f} s")
        yield server
    finally:
        for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
            if WORTH_SAYING.search(line):
                say(f"{log.stem}:", line[:400])
        if server is not None:
            server.close()


def texts(server: SglangServer, asked: Sequence[Request], tokens: int, logprobs: bool = False) -> list[dict[str, Any]]:
    """Continuations of all at once, on demand with the log-probability of every token."""
    body = {
        "input_ids": [list(request.input_ids) for request in asked],
        "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True},
        "return_logprob": logprobs,
    }
    return [
        {
            "ids": answer["output_ids"],
            "logprobs": [item[0] for item in answer["meta_info"].get("output_token_logprobs") or ()],
        }
        for answer in server._json("POST", "/generate", body)
    ]


def step_ms(server: SglangServer, requests: int) -> list[float]:
    """What a long output takes more than a short one, for each verify step more."""
    ids = [request.input_ids for request in prompts(server, requests)]

    def run(tokens: int) -> tuple[float, int]:
        found = server.generate(ids, tokens, ignore_eos=True)
        return found[0].wall_s, max(one.verify_steps for one in found)

    short, long = TOKENS[requests]
    run(short)
    pairs = [(run(short), run(long)) for _ in range(REPEATS[requests])]
    return [(after[0] - before[0]) / (after[1] - before[1]) * 1e3 for before, after in pairs]


def measured(server: SglangServer) -> dict[str, Any]:
    """What is compared of a server; what fails is said and left out."""
    info = server.info()
    found: dict[str, Any] = {"max_total_num_tokens": info.get("max_total_num_tokens")}
    for key in ("max_mamba_cache_size", "mem_fraction_static", "max_running_requests"):
        found[key] = info.get(key)
    asked = prompts(server, MANY)
    parts: dict[str, Callable[[], Any]] = {
        "one": lambda: [text for request in asked[:3] for text in texts(server, [request], 96)],
        "many": lambda: texts(server, asked, 64),
        "many again": lambda: texts(server, asked, 64),
        "ms 1": lambda: step_ms(server, 1),
        f"ms {MANY}": lambda: step_ms(server, MANY),
        # last, since nothing else uses this path of the engine
        "one, logprobs": lambda: [text for request in asked[:3] for text in texts(server, [request], 64, True)],
        "many, logprobs": lambda: texts(server, asked, 32, True),
    }
    for name, part in parts.items():
        try:
            found[name] = part()
        except Exception as error:
            say(f"FAILED {name}: {error!r}"[:600])
    return found


def agreement(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> str:
    """Identical, or where texts part and where log-probabilities first differ."""
    parted = []
    for number, (a, b) in enumerate(zip(one, two, strict=True)):
        for key in ("ids", "logprobs"):
            pairs = list(zip(a[key], b[key], strict=True))
            first = next((at for at, (x, y) in enumerate(pairs) if x != y), None)
            if first is not None:
                parted.append(f"{number} at {first} in {key}")
    tokens, logprobs = (sum(len(a[key]) for a in one) for key in ("ids", "logprobs"))
    said = f"{tokens} tokens and {logprobs} log-probabilities of {len(one)} texts"
    return f"IDENTICAL, {said}" if not parted else f"{len(parted)} partings in {said}: {parted[:8]}"


def say_results(found: dict[str, dict[str, Any]]) -> None:
    """Every arm beside stock."""
    stock = found.get("stock", {})
    if "many again" in stock and "many" in stock:
        say("RESULT stock against itself,", MANY, "at once:", agreement(stock["many"], stock["many again"]))
    for name, arm in found.items():
        if name == "stock":
            continue
        say(f"RESULT {name}: KV tokens {stock.get('max_total_num_tokens')} -> {arm.get('max_total_num_tokens')}")
        for key in TEXTS:
            if key in arm and key in stock:
                say(f"RESULT {name}, {key}:", agreement(stock[key], arm[key]))
        for key in ("ms 1", f"ms {MANY}"):
            if key in arm and key in stock:
                one, two = statistics.median(stock[key]), statistics.median(arm[key])
                say(f"RESULT {name}, {key}: stock {one:.3f}, {name} {two:.3f}, {one / two:.3f}x")


def check(tree: Path, folder: Path, entry: str) -> None:
    """`check.py` in the patched engine, and the entry's contracts that run on a GPU; their lines are printed."""
    contracts = share_dir("memory") / "sglang-0.5.20" / entry / "contracts"
    in_engine(tree, folder / "check", HERE / "check.py", str(folder / "check.json"), *ENTRIES[entry])
    for name, file in CONTRACTS.items():
        if (contracts / file).exists():
            in_engine(tree, folder / name, contracts / file)


def in_engine(tree: Path, name: Path, *words: str | Path) -> None:
    """A file in the engine's interpreter, from the tree; what it says is printed and kept in `NAME.log`."""
    env = place.environment(place.package_root(tree), place.kernel_cache(tree), {})
    argv = ["timeout", str(CHECK_S), place.python(), *map(str, words)]
    kept, log = {**os.environ, **env, "PYTHONSAFEPATH": ""}, name.with_suffix(".log")
    with log.open("w") as errors:
        process = subprocess.Popen(argv, env=kept, cwd=tree, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        for line in process.stdout:  # as it comes: a run that is cut off has said what it found
            print(line, end="", file=errors, flush=True)
            if line.startswith(("check:", "wy:")) or "numbers," in line:
                print(f"{name.name}:", line.rstrip(), flush=True)
    if process.wait():
        say(f"{name.name} ended with {process.returncode}: {log.read_text(errors='replace')[-1500:]}")


def main() -> None:
    """The whole comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--stock", type=Path, required=True, help="made with `specpilot stock init`")
    parser.add_argument("--deployment", default=DEPLOYMENT)
    parser.add_argument("--entry", default="gdn-commit", choices=sorted(ENTRIES))
    parser.add_argument("--arms", default="stock,cuda,triton,path", help="those the entry has; none: only check.py")
    parser.add_argument("--limit-s", type=float, default=235.0, help="no server is begun that would not end by then")
    parser.add_argument("--no-check", action="store_true")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    made, patched = plan(open_room(None), (options.entry,), options.stock), folder / options.entry
    if not patched.exists():
        materialise(made, patched)
    say(f"applied: tree {made.composition.tree}, as recorded: {made.reproduces}")
    paths = os.environ.get("SPECPILOT_SGLANG_PATH", "")
    os.environ["SPECPILOT_SGLANG_PATH"] = os.pathsep.join(filter(None, (str(HERE / "weights"), paths)))
    if not options.no_check:
        try:
            check(patched, folder, options.entry)
        except Exception as error:
            say(f"FAILED check.py: {error!r}"[:2000])
    args = load_deployment(options.deployment).record.server_args
    for flag in AT_ONCE[::2]:
        args = without(args, flag)
    args = (*args, *AT_ONCE, *REAL_TOKENS)
    found: dict[str, dict[str, Any]] = {}
    for name in (word for word in options.arms.split(",") if word in ("stock", *ENTRIES[options.entry])):
        if time.perf_counter() - BEGIN + SERVER_S > options.limit_s and found:
            say(f"{name}: left out, no time")
            continue
        tree, more = (options.stock, ()) if name == "stock" else (patched, ARMS[name])
        try:
            with running(tree, (*args, *more), folder / f"{name}.log") as server:
                found[name] = {}
                found[name].update(measured(server))
        except Exception as error:
            say(f"FAILED {name}: {error!r}"[:2000])
        (folder / "servers.json").write_text(json.dumps(found))
        for key in ("ms 1", f"ms {MANY}"):
            say(f"{name} {key}:", [round(value, 3) for value in found.get(name, {}).get(key, ())])
    say_results(found)
    say("end")


if __name__ == "__main__":
    main()
