"""Draft trees on a hybrid target (entry `tree-hybrid`) against stock SGLang, a group of engines after the other.

    python examples/tree/hybrid.py --out OUT --target DIR --drafters DIR --prompts FILE [--devices 0 1] [--stock DIR]
    python examples/tree/hybrid.py ... --systems dflash2@8,dflash2@8+32/cuda --widths 1 4 8 --set max_running_requests=8
    python examples/tree/hybrid.py --out OUT --tiny          # random checkpoints, made there: does anything crash

Systems: `ar`, `dflash2@8` (stock, block 8), `dflash2@8+32/cuda` (a tree of 32 nodes, its recurrent layers verified by
CUDA C++), `dflash2@8+32` (by Triton, a walk a leaf), `dspark@7` and so on. For 1, 4, 8, 16, 24 requests at once: tau,
milliseconds a step, tokens a second, and where texts part from AR's. Systems with a comma between them start at once on
one GPU, which has to hold them all, and are measured one after the other; groups follow each other. Stock's chains
reserve the state after every row of every request (at the 27B shape 151 MB each, 29 GB for 24 blocks of 8), so a
group with one needs few `max_running_requests`. Every engine is a process of its own with a time limit, its log stands
in OUT/NAME.log; OUT/hybrid.json and OUT/texts.json are rewritten as results come, and systems and widths that they
hold are not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
import h200  # noqa: E402
import running  # noqa: E402
from applied import engine_options, worktrees  # noqa: E402

SYSTEMS = ("dflash2@8+32/cuda,dspark@7+32/cuda", "dflash2@8", "dspark@7", "ar", "dflash2@8+32")
WIDTHS, ALONE, MOST = (1, 4, 8, 16, 24), 6, 24
"""Requests at a time; how many of them one at a time, and in all."""
MORE = {"linear_attn_backend": "triton", "mem_fraction_static": 0.85}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine_options(parser, entry="tree-hybrid", work="/tmp/tree-hybrid-work", limit_s=90.0)
    parser.add_argument("--tiny", action="store_true", help="random checkpoints of a small hybrid")
    parser.add_argument("--systems", nargs="*", default=SYSTEMS, metavar="NAME[,NAME...]")
    parser.add_argument("--devices", nargs="*", default=["0"], help="GPUs, one group at a time on each")
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--start-s", type=float, default=170.0, help="limit until a group's engines are ready")
    parser.add_argument("--last-s", type=float, default=400.0, help="no group starts later")
    return parser.parse_args()


def settings(options: argparse.Namespace, system: str) -> dict[str, Any]:
    """Engine arguments of a system."""
    return {**MORE, **h200.settings(options, system.partition("/")[0])}


def switches(system: str) -> dict[str, str]:
    """Environment of a system: what verifies a tree's recurrent layers, and what commits them."""
    if "+" not in system:
        return {}
    verifier = system.partition("/")[2] or "path"
    return {"SGLANG_GDN_COMMIT": "triton" if verifier == "path" else "cuda", "SGLANG_GDN_TREE": verifier}


def prompts_of(options: argparse.Namespace) -> list[list[int]]:
    """Token ids of as many requests as the widest batch has, and of MOST at least, whichever widths are asked for."""
    most = max(MOST, *options.widths)
    if options.prompts is None:
        return [[1 + (5 * n + 3 * i) % 29 for i in range(4 + n % 7)] for n in range(most)]
    found = json.loads(options.prompts.read_text())
    rows: list[list[int]] = [row for rows in found.values() for row in rows] if isinstance(found, dict) else found
    return rows[:most]


def tiny(folder: Path) -> None:
    """`target`, `dflash2`, `dspark`: 32 words, two Gated DeltaNet layers and two of attention, wide random weights."""
    import torch

    from specpilot_cli.testbed.nn.block_drafter import BlockConfig, BlockDrafter
    from specpilot_cli.testbed.nn.files import save
    from specpilot_cli.testbed.nn.hybrid import HybridConfig, HybridModel

    def drawn(module: Any, sources: tuple[str, ...]) -> Any:
        for name, weight in module.named_parameters():
            if weight.dim() > 1:  # so wide that every layer moves the text
                torch.nn.init.normal_(weight, std=1.0 if name.endswith(sources) else weight[0].numel() ** -0.5)
        return module

    torch.manual_seed(3)
    config = HybridConfig(32, 256, 512, 4, 4, 2, 2, 6, head_dim=128, full_attention_interval=2, eos_token_id=31)
    save(drawn(HybridModel(config), ("embed_tokens.weight", "lm_head.weight")), config.to_json(), folder / "target", {})
    for name, rows in (("dflash2", 8), ("dspark", 7)):
        shape = BlockConfig(
            "DFLASH2" if name == "dflash2" else "DSPARK", 256, 32, 4, (0, 2), 31, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, head_dim=128, intermediate_size=512, block_size=rows, rank=16,
        )  # fmt: skip
        save(drawn(BlockDrafter(shape), ("codebook", "w1.weight")), shape.to_json(), folder / name, {})


def at_once(engine: Any, prompts: list[list[int]], width: int, new_tokens: int) -> dict[str, Any]:
    """Rates and texts with `width` requests at a time, none of which ends early."""

    def generate(ids: list[list[int]], tokens: int) -> tuple[list[dict[str, Any]], float]:
        sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        begun = time.perf_counter()
        answers: list[dict[str, Any]] = engine.generate(input_ids=ids, sampling_params=sampling)
        return answers, time.perf_counter() - begun

    some = prompts[:ALONE] if width == 1 else prompts[: len(prompts) // width * width]
    groups = [some[at : at + width] for at in range(0, len(some), width)]
    generate(groups[0], 16)
    firsts = sum(generate(group, 1)[1] for group in groups)
    done = [generate(group, new_tokens) for group in groups]
    seconds = sum(s for _, s in done)
    found = h200.counted([answer for answers, _ in done for answer in answers], seconds, firsts)
    # the engine's steps of a group are those of its longest request; the first token is prefill's
    steps = sum(max(a["meta_info"].get("spec_verify_ct") or new_tokens - 1 for a in answers) for answers, _ in done)
    found |= {"engine_steps": steps, "step_ms": round((seconds - firsts) / steps * 1e3, 4)}
    return {**found, "texts": [answer["output_ids"] for answers, _ in done for answer in answers]}


def run_one(options: argparse.Namespace) -> None:
    """One engine in this process: READY, then for each line on stdin FOUND for every width."""
    import sglang

    begun = time.perf_counter()
    engine = sglang.Engine(**settings(options, options.one), **running.own_port())
    state = engine.get_server_info()
    ready = {"ready_s": round(time.perf_counter() - begun, 1), "tokens": state.get("max_total_num_tokens")}
    print("READY " + json.dumps(ready), flush=True)
    prompts = prompts_of(options)
    for _ in sys.stdin:
        for width in options.widths:
            print("FOUND " + json.dumps({str(width): at_once(engine, prompts, width, options.new_tokens)}), flush=True)
        print("FOUND " + json.dumps({"done": True}), flush=True)
    engine.shutdown()


class Bench:
    """All systems; a thread a device takes the next group."""

    def __init__(self, options: argparse.Namespace, stock: Path, ours: Path) -> None:
        self.options, self.trees = options, {False: stock, True: ours}
        self.begun, self.lock = time.monotonic(), threading.Lock()
        self.report, self.texts = self._kept("hybrid.json"), self._kept("texts.json")
        self.running: list[h200.Running] = []
        self.left: queue.Queue[list[str]] = queue.Queue()
        for group in options.systems:
            if missing := [system for system in group.split(",") if not self.complete(system)]:
                self.left.put(missing)

    def _kept(self, name: str) -> dict[str, Any]:
        path = self.options.out / name
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def complete(self, system: str) -> bool:
        """Whether all widths of this call are there."""
        return all(str(width) in self.report.get(system, {}) for width in self.options.widths)

    def say(self, text: str) -> None:
        """With the seconds since the start."""
        print(f"[{time.monotonic() - self.begun:.0f} s] {text}", flush=True)

    def serve(self, device: str) -> None:
        """Groups on one device, until none is left or it is late."""
        while time.monotonic() - self.begun < self.options.last_s:
            with contextlib.suppress(queue.Empty):
                self.measure(self.left.get_nowait(), device)
                continue
            return
        self.say(f"GPU {device}: late, not run: {list(self.left.queue)}")

    def measure(self, group: list[str], device: str) -> None:
        """The engines of a group, all started, then measured one by one."""
        self.say(f"{', '.join(group)} on GPU {device}: start")
        engines = [self.started(system, device) for system in group]
        try:
            until = time.monotonic() + self.options.start_s
            ready = [engine for engine in engines if self.is_ready(engine, until)]
            for engine in ready:
                engine.say("measure")
                self.all_of(engine, time.monotonic() + self.options.limit_s)
        finally:
            for engine in engines:
                engine.close()
                self.running.remove(engine)

    def started(self, system: str, device: str) -> h200.Running:
        """An engine of its own process group."""
        tree = self.trees["+" in system]
        engine = h200.Running(self.options, system, tree, device, Path(__file__), more=switches(system))
        self.running.append(engine)
        return engine

    def stop(self) -> None:
        """No more groups, and the end of those that run: their threads then find no answer."""
        self.options.last_s = -1.0
        for engine in self.running:
            engine.kill()

    def is_ready(self, engine: h200.Running, until: float) -> bool:
        """Waits for it; one that does not come is ended."""
        answer = engine.answer("READY", until)
        if answer is None:
            self.say(f"{engine.system} DID NOT START; its log:\n{engine.fault()}")
            engine.close()
            return False
        self.take(engine.system, json.loads(answer))
        return True

    def all_of(self, engine: h200.Running, until: float) -> None:
        """What it finds, width by width."""
        while (answer := engine.answer("FOUND", until)) is not None:
            found = json.loads(answer)
            if found.get("done"):
                break
            self.take(engine.system, found)
        else:
            self.say(f"{engine.system} ended early, or took too long; its log:\n{engine.fault()}")
        engine.close()  # its memory and its idle threads are not the next one's business

    def take(self, system: str, found: dict[str, Any]) -> None:
        """A part of a system's results."""
        with self.lock:
            for width, part in found.items():
                if isinstance(part, dict):
                    self.texts.setdefault(system, {})[width] = part.pop("texts")
                    part["settings"] = self.options.set
            self.report.setdefault(system, {}).update(found)
            self.options.out.joinpath("hybrid.json").write_text(json.dumps(self.report, indent=1) + "\n")
            self.options.out.joinpath("texts.json").write_text(json.dumps(self.texts))
        self.say(f"{system}: {json.dumps(found)}")

    def table(self) -> None:
        """Everything in lines for people, what an earlier call found included."""
        for system, found in self.report.items():
            for width in sorted((key for key in found if key.isdecimal()), key=int):
                print("RESULT " + self.line(system, width), flush=True)

    def line(self, system: str, width: str) -> str:
        """One system at one width: rates, against its own chain in stock, and texts against the chain's and AR's."""
        part, chain = self.report[system][width], system.partition("+")[0]
        line = f"{system:18} x{width:>2}: tau {part['tau']}, {part['step_ms']} ms a step, {part['decode_tok_s']} tok/s"
        base = self.report.get(chain, {}).get(width) if chain != system else None
        if base:
            gain, slower = part["decode_tok_s"] / base["decode_tok_s"], part["step_ms"] / base["step_ms"]
            whole = part["tok_s"] / base["tok_s"]
            line += f" ({gain:.3f} x {chain}, {whole:.3f} x with prompts; a step {slower:.3f} x)"
        for other in ("ar", chain):
            theirs = self.texts.get(other, {}).get(width)
            if theirs and other != system:
                line += f"; texts of {other}: {h200.parted(theirs, self.texts[system][width])}"
        return line


def main() -> int:
    """All systems."""
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    options.work.mkdir(parents=True, exist_ok=True)
    if options.one:
        run_one(options)
        return 0
    if options.tiny:
        options.target, options.drafters = options.work / "tiny" / "target", options.work / "tiny"
        if not options.target.exists():
            tiny(options.work / "tiny")
    bench = Bench(options, *worktrees(options))
    signal.signal(signal.SIGTERM, lambda *_: bench.stop())  # a time limit: no engine may stay on the GPU
    threads = [threading.Thread(target=bench.serve, args=[device]) for device in options.devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bench.table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
