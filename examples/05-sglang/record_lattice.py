"""The memory entry `record-lattice` on a GPU: does it record what the engine did, and what does it cost?

    python examples/05-sglang/record_lattice.py --stock STOCK --work DIR [--out result.json] [--parts chain,cost]

`chain`: servers with drafters whose acceptance is known (`ring.py`), every step recorded. Of every step, the accepted
drafts are the same by construction, in the recording, and in the plain replay of the recorded chain; their sums are the
server's own counters. `cost`: one deployment with random weights, stock against the entry that records every 16th step,
both servers up at once, requests alternating A B B A; outputs have to be equal. Exit 1 where a check fails.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
from ring import VOCAB, Ring, write  # noqa: E402

from specpilot_cli.deployment import load_deployment, load_requests  # noqa: E402
from specpilot_cli.engine.base import Generation  # noqa: E402
from specpilot_cli.engine.sglang.adapter import SglangAdapter  # noqa: E402
from specpilot_cli.engine.sglang.server import SglangServer  # noqa: E402
from specpilot_cli.replay.accept import NEVER, reach  # noqa: E402
from specpilot_cli.replay.builders.chain import chain  # noqa: E402
from specpilot_cli.replay.collect import collect  # noqa: E402
from specpilot_cli.replay.lattice_file import LatticeReader  # noqa: E402
from specpilot_cli.replay.recorders.sglang import only  # noqa: E402
from specpilot_cli.replay.steps import Steps, join  # noqa: E402

STARTED = time.monotonic()
PLAIN = (
    "--skip-tokenizer-init --attention-backend triton --sampling-backend pytorch --grammar-backend none --page-size 1 "
    "--min-free-slots-delay 1 --disable-radix-cache --sleep-on-idle --disable-prefill-cuda-graph --context-length 2048 "
    "--mem-fraction-static 0.85 --max-total-tokens 20000 --max-running-requests 8 --cuda-graph-max-bs-decode 8 "
    "--random-seed 0 --speculative-draft-attention-backend triton"
).split()
SHARED = "--max-running-requests 32 --cuda-graph-max-bs-decode 32 --max-total-tokens 40000".split()
"""Of both servers of `cost`: they share one GPU."""
MOST = 1.03
RING_TOKENS, STREAM_TOKENS, BATCH, BATCH_TOKENS = 120, 256, 24, (16, 80)


def say(*words: object) -> None:
    """A line with the time."""
    print(f"[{time.monotonic() - STARTED:5.1f} s]", *words, flush=True)


def flags(algorithm: str, folder: Path) -> list[str]:
    """A ring server's."""
    drafter = "dspark" if algorithm == "DSPARK" else "dflash2"
    block = (
        ["--speculative-dspark-block-size", "7"] if algorithm == "DSPARK" else ["--speculative-dflash-block-size", "8"]
    )
    models = ["--model-path", str(folder / "target"), "--speculative-draft-model-path", str(folder / drafter)]
    return [*PLAIN, *models, "--speculative-algorithm", algorithm, *block]


def recording(folder: Path, interval: int) -> list[str]:
    """Flags of the entry."""
    return ["--speculative-lattice-dir", str(folder), "--speculative-lattice-interval", str(interval)]


def recorded(folder: Path, names: set[str]) -> Steps:
    """All steps, once the requests `names` are there."""
    limit = time.monotonic() + 30
    while time.monotonic() < limit:
        if (folder / "lattice.json").exists():
            reader = LatticeReader(str(folder))
            if names <= {name for shard in reader.body.shards for name in shard.requests}:
                say(folder.name, "caveats:", list(reader.artifact.caveats))
                return join(list(reader.blocks()))
        time.sleep(0.2)
    raise SystemExit(f"{folder}: the recording lacks requests after 30 s")


def chain_accepts(steps: Steps) -> np.ndarray:
    """Drafts of the lattices' greedy chains that the recorded text accepts."""
    return np.asarray((reach(chain(steps, steps.positions), steps.continuation) != NEVER).sum(1))


def check_ring(algorithm: str, server: SglangServer, folder: Path) -> dict[str, Any]:
    """Every step of eight requests."""
    ring, source = Ring(), random.Random(1)
    prompts = [[source.randrange(VOCAB - 3) for _ in range(5 + n)] for n in range(8)]
    names = [f"ring-{n}" for n in range(8)]
    answers = server.generate(prompts, RING_TOKENS, ignore_eos=True, names=names)
    steps = only(recorded(folder, set(names)), set(names))
    by_name = dict(zip(names, answers, strict=True))
    mine = [steps.take(np.flatnonzero(steps.request == r)) for r in range(len(steps.texts))]
    reader = LatticeReader(str(folder))
    replayed = collect(reader.blocks, ("chain",), (steps.positions,), (steps.positions,))
    counted = sum(a.correct_drafts for a in answers) / sum(a.verify_steps for a in answers) + 1
    return {
        "texts are the ring's": all(
            list(a.output_ids) == ring.text(p[-1], RING_TOKENS) for a, p in zip(answers, prompts, strict=True)
        ),
        "every counted step is there": all(_same(by_name[t.id], s) for t, s in zip(steps.texts, mine, strict=True)),
        "accepted by construction": steps.accepted.tolist() == [ring.accepted(int(a), 7) for a in steps.anchor],
        "accepted by the chain's replay": steps.accepted.tolist() == chain_accepts(steps).tolist(),
        "so says `replay` of the steps that it takes": replayed.chain.tolist() == replayed.accepted.tolist(),
        "figures": {
            "algorithm": algorithm, "drafter": reader.body.drafter, "steps": len(steps), "tau of the counters": counted,
            "tau of the chain over the steps with a whole continuation": 1 + float(replayed.chain.mean()),
            "accepted": np.bincount(steps.accepted, minlength=8).tolist(),
        },
    }  # fmt: skip


def _same(answer: Generation, steps: Steps) -> bool:
    return (len(steps), int(steps.accepted.sum())) == (answer.verify_steps, answer.correct_drafts)


def step_ms(server: SglangServer, prompts: list[list[int]]) -> float:
    """Of a batch: two lengths, so that prefill and answer fall out."""
    walls, steps = [], []
    for tokens in BATCH_TOKENS:
        answers = server.generate(prompts, tokens, ignore_eos=True)
        walls.append(answers[0].wall_s)
        steps.append(max(a.verify_steps for a in answers))
    return (walls[1] - walls[0]) * 1e3 / (steps[1] - steps[0])


def check_cost(arms: dict[str, SglangServer], folder: Path, rounds: int) -> dict[str, Any]:
    """Step times of both servers in turn, for one request and for a batch."""
    asked = [list(r.input_ids) for r in load_requests("sglang-random", "develop").requests]
    prompts = (asked * (1 + max(rounds, BATCH) // len(asked)))[: max(rounds, BATCH)]
    for server in arms.values():  # first-use compilation, and the recorder's first samples
        server.stream(prompts[0], 64)
        step_ms(server, prompts[:BATCH])
    one: dict[str, list[float]] = {name: [] for name in arms}
    many: dict[str, list[float]] = {name: [] for name in arms}
    outputs: dict[str, list[Any]] = {name: [] for name in arms}
    order = list(arms)
    for number in range(rounds):
        for name in order if number % 2 == 0 else order[::-1]:
            streamed = arms[name].stream(prompts[number], STREAM_TOKENS)
            one[name].append(mean(streamed.step_ms))
            outputs[name].append(streamed.generation.output_ids)
        for name in order if number % 2 else order[::-1]:
            many[name].append(step_ms(arms[name], prompts[:BATCH]))
    time.sleep(2)  # the last requests are written after a second
    steps = recorded(folder, set())
    ratio = {key: median(found["on"]) / median(found["off"]) for key, found in (("1", one), (str(BATCH), many))}
    return {
        "outputs are equal": outputs["on"] == outputs["off"],
        "the sampled steps are the chain's": steps.accepted.tolist() == chain_accepts(steps).tolist(),
        f"less than {MOST - 1:.0%} on one request": ratio["1"] < MOST,
        f"less than {MOST - 1:.0%} on {BATCH} requests": ratio[str(BATCH)] < MOST,
        "figures": {
            "step ms on / off": ratio, "one request": one, f"{BATCH} requests": many, "sampled steps": len(steps),
            "accepted": np.bincount(steps.accepted).tolist(),
        },
    }  # fmt: skip


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parts", default="chain,cost")
    parser.add_argument("--deployment", default="dense8b__dspark__h200-sxm__r1")
    parser.add_argument("--interval", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--ready", type=float, default=100.0, help="seconds that the servers may take to start")
    options = parser.parse_args()
    work, parts = options.work.absolute(), options.parts.split(",")
    work.mkdir(parents=True, exist_ok=True)
    worktree = work / "record"
    apply = ["memory", "apply", "record-lattice", "--stock", str(options.stock), "--worktree", str(worktree)]
    subprocess.run([sys.executable, "-m", "specpilot_cli", *apply, "-o", str(work / "apply.json")], check=True)
    plan: dict[str, tuple[Path, list[str]]] = {}
    if "chain" in parts:
        write(Ring(), work / "ring")
        for algorithm in ("DFLASH", "DSPARK"):
            args = [*flags(algorithm, work / "ring"), *recording(work / algorithm.lower(), 1)]
            plan[algorithm] = worktree, args
    if "cost" in parts:
        args = [a for a in load_deployment(options.deployment).record.server_args if "SGLANG_SIMULATE" not in a]
        plan["off"] = options.stock, [*args, *SHARED]
        plan["on"] = worktree, [*args, *SHARED, *recording(work / "on", options.interval)]
    say("starting", ", ".join(plan))
    result: dict[str, Any] = {}
    with ThreadPoolExecutor(len(plan)) as pool:  # an engine ends with the thread that started it
        servers: dict[str, SglangServer] = {}
        waiting = {
            name: pool.submit(SglangAdapter().launch, tree, args, log=work / f"{name}.log", timeout_s=options.ready)
            for name, (tree, args) in plan.items()
        }
        try:
            for name, one in waiting.items():
                servers[name] = one.result()
                say(name, "is ready")
            for name in ("DFLASH", "DSPARK"):
                if name in servers:
                    result[name] = check_ring(name, servers[name], work / name.lower())
                    servers.pop(name).close()
                    say(name, json.dumps(result[name]))
            if "on" in servers:
                result["cost"] = check_cost({n: servers[n] for n in ("off", "on")}, work / "on", options.rounds)
                say("cost", json.dumps(result["cost"]))
        finally:
            for one in waiting.values():
                if one.done() and one.exception() is None:
                    one.result().close()
    failed = [f"{part}: {check}" for part, found in result.items() for check, ok in found.items() if ok is False]
    if options.out:
        options.out.write_text(json.dumps({"failed": failed, **result}, indent=1))
    say("FAILED " + "; ".join(failed) if failed else "all checks hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
