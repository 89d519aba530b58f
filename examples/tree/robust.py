"""Draft trees under traffic on one GPU: arrivals, aborts, retraction, long contexts. Texts as alone, no slot lost.

    python examples/tree/robust.py --out OUT --target DIR --drafters DIR --prompts DIR [--system dflash2@8+32]

Three engines, each a process of its own, all at once (`--devices` spreads them):

- `traffic`: 200 requests that arrive one after the other and leave after 4 to 96 tokens, every fifth aborted in the
  middle of its text; each text has to begin as the same prompt's does alone.
- `pressure`: the same prompts, 24 at once, in a pool of --pool slots, so that requests are retracted and come back.
- `long`: prompts of 16k and 32k tokens beside short ones, alone and together. The checkpoints' context is raised in a
  copy of their configuration: what they say out there is not sensible, but it depends on every slot of the cache.

After each, the engine stays idle until its own check of both pools has run (it raises where a slot is missing), the
slots in use are read, and one more request has to give its text again. BF16 texts may part at near-ties: how many did,
and where, is printed and not judged. OUT/robust.json has all of it; exit 1 where an engine ended, slots are missing, a
text that did not part is shorter or longer than alone, `traffic` aborted nothing, or `pressure` retracted nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import h200  # noqa: E402
import running  # noqa: E402
from applied import engine_options, worktrees  # noqa: E402

REQUESTS, DISTINCT, LONGEST, SEED = 200, 40, 96, 20261130
LONG = (16_000, 32_000, 16_500, 31_000)
"""Tokens of the long prompts."""
CONTEXT = 40_960
SETTINGS: dict[str, dict[str, Any]] = {
    "traffic": {},
    "pressure": {"schedule_conservativeness": 0.05},
    "long": {
        "context_length": CONTEXT,
        "max_total_tokens": 131_072,
        "max_running_requests": 8,
        "cuda_graph_max_bs_decode": 8,
    },
}


class Run:
    """An engine, its prompts, and what they say alone."""

    def __init__(self, engine: Any, prompts: list[list[int]], stops: list[int]) -> None:
        self.engine, self.prompts, self.stops = engine, prompts, stops
        self.alone = [self.text(prompt, LONGEST) for prompt in prompts]

    def sampling(self, tokens: int) -> dict[str, Any]:
        """Greedy."""
        return {"temperature": 0, "max_new_tokens": tokens, "stop_token_ids": self.stops}

    def text(self, prompt: list[int], tokens: int) -> list[int]:
        """Of one prompt, nothing beside it."""
        found: list[int] = self.engine.generate(input_ids=prompt, sampling_params=self.sampling(tokens))["output_ids"]
        return found

    async def one(self, number: int, prompt: int, tokens: int, wait_s: float, abort_after: int | None) -> list[int]:
        """A request that comes after a while; with `abort_after` it is aborted once it has so many tokens."""
        await asyncio.sleep(wait_s)
        name = f"r{number:04d}"
        made = await self.engine.async_generate(
            input_ids=self.prompts[prompt], sampling_params=self.sampling(tokens), stream=True, rid=name
        )
        text: list[int] = []
        async for chunk in made:
            text = chunk["output_ids"]
            if abort_after is not None and len(text) >= abort_after:
                self.engine.tokenizer_manager.abort_request(rid=name)
                abort_after = None
        return text

    def together(self, plan: list[tuple[int, int, float, int | None]]) -> dict[str, Any]:
        """Requests (prompt, tokens, seconds to wait, tokens until the abort), against their texts alone."""
        begun = time.perf_counter()
        jobs = [self.one(number, *row) for number, row in enumerate(plan)]

        async def gathered() -> list[list[int]]:
            return list(await asyncio.gather(*jobs))

        texts = self.engine.loop.run_until_complete(gathered())
        found: dict[str, Any] = {"seconds": round(time.perf_counter() - begun, 2), "requests": len(plan)}
        parted, short, aborted = [], 0, 0
        for (prompt, tokens, _, until), text in zip(plan, texts, strict=True):
            wanted = self.alone[prompt][:tokens]
            at = next((i for i, (a, b) in enumerate(zip(wanted, text, strict=False)) if a != b), None)
            aborted += until is not None and len(text) < len(wanted)
            if at is not None:
                parted.append(at)
            elif until is None and len(text) != len(wanted):
                short += 1
        return found | {"parted_at": parted, "of_another_length": short, "aborted": aborted}

    def used(self) -> int:
        """Slots of the cache in use, when the engine has been idle for a while."""
        time.sleep(2.5)
        loads = self.engine.loop.run_until_complete(self.engine.tokenizer_manager.get_loads())
        return max(int(load.num_used_tokens) for load in loads)

    def again(self) -> bool:
        """Whether the first prompt still says the same, alone."""
        return self.text(self.prompts[0], LONGEST) == self.alone[0]


def plan_of(kind: str, prompts: int) -> list[tuple[int, int, float, int | None]]:
    """The requests of a run, the same in every process."""
    source = random.Random(SEED)
    if kind == "long":
        return [(n, 64, 0.05 * n, None) for n in range(prompts)]
    if kind == "pressure":
        return [(n % prompts, LONGEST, 0.0, None) for n in range(72)]
    plan, now = [], 0.0
    for number in range(REQUESTS):
        now += source.expovariate(1 / 0.025)
        tokens = source.randint(4, LONGEST)
        until = source.randint(2, 16) if number % 5 == 0 else None
        plan.append((source.randrange(prompts), LONGEST if until else tokens, now, until))
    return plan


def prompts_for(kind: str, options: argparse.Namespace) -> list[list[int]]:
    """Prompts of their own, and in `long` four of thousands of tokens in front."""
    options.requests = DISTINCT
    plain = h200.prompts_of(options)
    if kind != "long":
        return plain
    stream = [token for prompt in plain * (1 + max(LONG) // sum(map(len, plain))) for token in prompt]
    return [stream[at : at + size] for at, size in enumerate(LONG)] + plain[:4]


def with_context(folder: Path, into: Path) -> Path:
    """A checkpoint whose configuration allows CONTEXT positions; weights are links."""
    into.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        link = into / path.name
        if path.name != "config.json" and not link.exists():
            link.symlink_to(path.resolve())
    config = json.loads((folder / "config.json").read_bytes())
    config["max_position_embeddings"] = max(2 * CONTEXT, config.get("max_position_embeddings", 0))
    (into / "config.json").write_text(json.dumps(config))
    return into


def run_one(options: argparse.Namespace) -> None:
    """One engine in this process; prints FOUND and a JSON object."""
    import sglang

    kind = options.one
    settings = {**h200.settings(options, options.system), **SETTINGS[kind]}
    settings |= {"max_total_tokens": options.pool} if kind == "pressure" else {}
    settings |= {key: json.loads(value) for key, _, value in (text.partition("=") for text in options.set)}
    prompts = prompts_for(kind, options)
    if kind == "long":
        copies = options.work / "long"
        settings["model_path"] = str(with_context(options.target, copies / "target"))
        if options.system != "ar":
            drafter = Path(settings["speculative_draft_model_path"])
            settings["speculative_draft_model_path"] = str(with_context(drafter, copies / drafter.name))
    engine = sglang.Engine(**settings, **running.own_port())
    print(f"READY {kind}", flush=True)
    stops = json.loads((options.target / "config.json").read_bytes()).get("eos_token_id")
    run = Run(engine, prompts, stops if isinstance(stops, list) else [] if stops is None else [stops])
    found: dict[str, Any] = {"used_before": run.used(), "lengths": sorted({len(p) for p in prompts})[-4:]}
    found |= run.together(plan_of(kind, len(prompts)))
    found |= {"used_after": run.used(), "again": run.again(), "texts": run.alone}
    print("FOUND " + json.dumps(found), flush=True)
    engine.shutdown()


def faults(kind: str, found: dict[str, Any], log: str) -> list[str]:
    """What is wrong with a run."""
    wrong = []
    if found["used_after"] != found["used_before"]:
        wrong.append(f"{found['used_after']} slots in use, {found['used_before']} before")
    if "leak detected" in log:
        wrong.append("the engine's own check found slots missing")
    if not found["again"]:
        wrong.append("the first prompt says something else afterwards")
    if kind == "traffic" and not found["aborted"]:
        wrong.append("nothing was aborted in the middle of its text")
    if kind == "pressure" and not found["retractions"]:
        wrong.append("nothing was retracted: a smaller --pool")
    if found["of_another_length"]:
        wrong.append(f"{found['of_another_length']} texts ended elsewhere than alone")
    return wrong


def main() -> int:
    """All three at once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine_options(parser, entry="tree-core", work="/tmp/tree-work", limit_s=300.0, made_up=False)
    parser.add_argument("--system", default="dflash2@8+32", help="as in h200.py")
    parser.add_argument("--kinds", nargs="*", default=list(SETTINGS))
    parser.add_argument("--pool", type=int, default=4096, help="slots of `pressure`")
    parser.add_argument("--devices", nargs="*", default=[], help="GPUs that the engines take in turn")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        run_one(options)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a time limit: no engine may stay on the GPU
    _, worktree = worktrees(options)
    devices = itertools.cycle(options.devices or [None])
    engines = [
        h200.Running(options, kind, worktree, device, script=Path(__file__), words=sys.argv[1:])
        for kind, device in zip(options.kinds, devices, strict=False)
    ]
    report: dict[str, Any] = {}
    until, wrong = time.monotonic() + options.limit_s, []
    try:
        for engine in engines:
            answer = engine.answer("FOUND", until)
            log = engine.log.read_text(errors="replace")
            if answer is None:
                wrong.append(engine.system)
                report[engine.system] = {"fault": engine.fault()}
                print(
                    f"{engine.system} ENDED, or took longer than {options.limit_s:.0f} s:\n{engine.fault()}", flush=True
                )
                continue
            found = json.loads(answer)
            found["retractions"] = log.count("Retract requests")
            bad = faults(engine.system, found, log)
            report[engine.system] = found | {"faults": bad}
            wrong += [engine.system] if bad else []
            said = {key: value for key, value in found.items() if key != "texts"}
            print(f"{engine.system}: {'; '.join(bad) or 'good'}; {said}", flush=True)
            (options.out / "robust.json").write_text(json.dumps(report))
    finally:
        for engine in engines:
            engine.close()
        (options.out / "robust.json").write_text(json.dumps(report))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
