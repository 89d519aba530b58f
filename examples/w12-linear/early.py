"""What the entry `early-release` adds to `w12-linear` in an engine: AR steps of three servers, interleaved, one GPU.

    python early.py --stock STOCK --folder DIR --deployment DEPLOYMENT [--rows 1 8 32] [--rounds 7] [--after FILE ...]

Arms: stock; `w12` (w12-linear, `--quantization w12`); `w12+early` (the same tree, with early-release switched on); with
--also NAME=WORKTREE[:SGLANG_NAME=VALUE] further ones with the flags of `w12+early`, and those switches, from worktrees
that are taken as they are. All servers run at once and are timed in turn, in an order drawn anew for every round and
batch size. A step is what a longer call takes more than a shorter one. FOLDER/early.json has every sample, and where
greedy texts part from stock's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "testbed"), str(HERE.parents[1])]

from compare import AT_ONCE, TOKENS, W12, Arm, compare, greedy, prompts, say, say_kernels, started  # noqa: E402
from running import wait_for  # noqa: E402

from specpilot_cli.deployment import Request, load_deployment  # noqa: E402
from specpilot_cli.engine.flags import autoregressive  # noqa: E402
from specpilot_cli.engine.sglang.server import SglangServer  # noqa: E402
from specpilot_cli.memory.apply import is_there, materialise, plan  # noqa: E402
from specpilot_cli.memory.room import open_room  # noqa: E402

ENTRIES = ("w12-linear", "early-release")
EARLY = ("@env:SGLANG_EARLY_RELEASE=256",)
ARMS = ("stock", "w12", "w12+early")
TEXTS, LENGTH = 12, 64


def gap_ms(server: SglangServer, asked: Sequence[Request]) -> float:
    """Milliseconds a step of this batch."""
    ids = [request.input_ids for request in asked]
    short, long = (server.generate(ids, tokens, ignore_eos=True)[0].wall_s for tokens in TOKENS)
    return (long - short) / (TOKENS[1] - TOKENS[0]) * 1e3


def sampled(
    servers: dict[str, SglangServer], asked: Sequence[Request], rows: Sequence[int], rounds: int, seed: int = 0
) -> dict[str, dict[int, list[float]]]:
    """Step times by arm and batch size; the i-th of two arms were taken in the same round."""
    draw = random.Random(seed)
    found: dict[str, dict[int, list[float]]] = {name: {count: [] for count in rows} for name in servers}
    for count in rows:  # a new batch size may compile kernels
        for server in servers.values():
            gap_ms(server, asked[:count])
    for _ in range(rounds):
        for count in rows:
            for name in draw.sample(list(servers), len(servers)):
                found[name][count].append(gap_ms(servers[name], asked[:count]))
    return found


def gains(found: dict[str, dict[int, list[float]]], base: str = "stock") -> dict[str, dict[int, list[float]]]:
    """Step of `base` over each other arm's: the median over rounds, the least and the largest."""
    made: dict[str, dict[int, list[float]]] = {}
    for name in (n for n in found if n != base):
        for count, samples in found[name].items():
            ratios = [one / two for one, two in zip(found[base][count], samples, strict=True)]
            made.setdefault(name, {})[count] = [round(f(ratios), 4) for f in (statistics.median, min, max)]
    return made


def arms_of(names: Sequence[str], stock: Path, ours: Path, args: Sequence[str], also: Sequence[str] = ()) -> list[Arm]:
    """Names, trees and flags; stock is always among them. also: NAME=WORKTREE[:SGLANG_NAME=VALUE...]."""
    plain = (*autoregressive(tuple(args)), *AT_ONCE)
    flags = {"stock": plain, "w12": (*plain, *W12), "w12+early": (*EARLY, *plain, *W12)}
    arms = [(n, stock if n == "stock" else ours, given) for n, given in flags.items() if n in ("stock", *names)]
    for name, _, rest in (text.partition("=") for text in also):
        tree, *switches = rest.split(":")
        arms.append((name, Path(tree), (*(f"@env:{switch}" for switch in switches), *flags["w12+early"])))
    return arms


def measure(servers: dict[str, SglangServer], rows: Sequence[int], rounds: int) -> dict[str, Any]:
    """Times, and the texts of each arm beside stock's."""
    stock = servers["stock"]
    found = sampled(servers, prompts(stock, max(rows)), rows, rounds)
    texts = {name: greedy(server, prompts(stock, TEXTS), LENGTH) for name, server in servers.items()}
    parted = {name: compare(texts["stock"], text) for name, text in texts.items() if name != "stock"}
    return {"step_ms": found, "gain": gains(found), "texts": parted}


def kept(folder: Path, found: dict[str, Any]) -> None:
    """Write what is known."""
    (folder / "early.json").write_text(json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Apply, start, measure, say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS, help="where not all fit on the GPU")
    parser.add_argument("--also", nargs="*", default=[], metavar="NAME=WORKTREE[:ENV=VALUE]", help="more arms")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--kernels", action="store_true", help="where a step of two requests goes, arm by arm, at the end"
    )
    parser.add_argument("--after", type=Path, nargs="*", default=[], help="time nothing before these files exist")
    parser.add_argument("--after-s", type=float, default=300.0, help="how long to wait for them")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    made, ours = plan(open_room(None), ENTRIES, options.stock), options.folder / "tree"
    if not is_there(made.composition.tree, ours):
        materialise(made, ours)
    say(f"applied {' '.join(ENTRIES)}: tree {made.composition.tree}, as recorded: {made.reproduces}")
    deployment = load_deployment(options.deployment).record
    arms = arms_of(options.arms, options.stock, ours, deployment.server_args, options.also)
    with ExitStack() as servers:
        names = [name for name, _, _ in arms]
        running = dict(zip(names, started(servers, arms, options.folder), strict=True))
        wait_for(options.after, options.after_s)
        found = measure(running, options.rows, options.rounds)
        kept(options.folder, found)
        if options.kernels:  # behind what is timed: a profiler slows a server down
            sizes = (min(options.rows), max(options.rows))
            found["kernels"] = {
                name: {size: say_kernels(name, server, options.folder, size) for size in sizes}
                for name, server in running.items()
            }
    found |= {"tree": made.composition.tree, "deployment": f"{deployment.id}, AR", "tokens": TOKENS}
    kept(options.folder, found)
    for name, by_rows in found["gain"].items():
        for count, (middle, least, most) in by_rows.items():
            ms = (statistics.median(found["step_ms"][arm][count]) for arm in ("stock", name))
            shown = " -> ".join(f"{value:.3f}" for value in ms)
            say(f"RESULT {name} at {count} requests: {shown} ms, {middle:.3f}x [{least:.3f}, {most:.3f}]")
        say(f"RESULT {name} texts: {found['texts'][name]}")


if __name__ == "__main__":
    main()
