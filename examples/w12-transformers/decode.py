"""Greedy decoding of a Llama of 8B shape: BF16 and W12, interleaved in one process on one GPU.

    python decode.py [--shape tiny --device cpu] [--repeats 5] [--compile]

All arms with the same loop (static cache, one CUDA graph a step, no word from the host): the model's own forward
(`stock`), its linears replaced and nothing else (`w12-linears`), and the step of few kernels with BF16 (`bf16-fused`)
and W12 weights (`w12-fused`; `w12-late` without early launch of the small kernels). `--compile` adds the stock forward
through torch.compile, which takes a minute.
"""

from __future__ import annotations

import argparse
import copy
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from checks import forced, kernels, parting
from model import Compilation, build

from specpilot_cli.w12.codec import room
from specpilot_cli.w12.transformers import Decoder, merge, quantize
from specpilot_cli.w12.transformers.linear import W12Linear

BEGIN = time.perf_counter()
PROMPT, TOKENS = 64, 256
TILE = 128  # keys that a tile of cuDNN's attention holds; the cache of 320 slots ends in the middle of one


def say(*words: object) -> None:
    """One line with the time since the start."""
    print(f"[{time.perf_counter() - BEGIN:5.1f} s]", *words, flush=True)


def step_bytes(model: Any, slots: int) -> int:
    """Bytes that one step has to read: weights but for the embedding's other rows, and the filled cache."""
    weights = 0
    for module in model.modules():
        if isinstance(module, W12Linear):
            read = (module.records, module.window_low, module.patches, module.hard_start)
            weights += sum(t.numel() * t.element_size() for t in read)
        elif not isinstance(module, torch.nn.Embedding):
            weights += sum(p.numel() * p.element_size() for p in module.parameters(recurse=False))
    config = model.config
    head = config.hidden_size // config.num_attention_heads
    return weights + slots * config.num_hidden_layers * config.num_key_value_heads * head * 2 * 2


def arms(options: argparse.Namespace, model: Any, compiled: Compilation | None) -> dict[str, Decoder]:
    """Every arm's decoder, on a model of its own."""
    length = PROMPT + TOKENS
    if compiled:
        compiled.done()
        say("W12 kernel compiled")
    found = {"stock": Decoder(model, length, fused=False)}
    plain = copy.deepcopy(model)
    report = quantize(plain, merge=False)
    sizes = f"{report.bytes_before / 1e9:.2f} → {report.bytes_after / 1e9:.2f} GB"
    say(f"{len(report.replaced)} linears packed and compared, {sizes}")
    found["w12-linears"] = Decoder(plain, length, fused=False)
    merged = copy.deepcopy(model)
    spared = merge(merged)
    found["bf16-fused"] = Decoder(merged, length, fused=True)
    quantized = copy.deepcopy(merged)
    quantize(quantized)
    say(f"{spared} products fewer by merging")
    found["w12-fused"] = Decoder(quantized, length, fused=True)
    found["w12-late"] = Decoder(quantized, length, fused=True, early=False)
    if options.compile:
        twin = copy.deepcopy(model)
        twin.forward = torch.compile(twin.forward, dynamic=False)
        found["stock-compiled"] = Decoder(twin, length, fused=False)
    return found


def reproducible(name: str, decoder: Decoder, ids: Tensor) -> tuple[Tensor, bool]:
    """Output of an arm, and whether a second run gives the same; says where not."""
    found = decoder.greedy(ids, TOKENS)[0]
    again = decoder.greedy(ids, TOKENS)[0]
    apart = (found != again).nonzero().flatten().tolist()
    same = f"NOT REPRODUCIBLE: a second run differs from token {apart[0]} on" if apart else "two runs are identical"
    say(f"{name}: {len(found.unique())} different tokens of {TOKENS}, {same}")
    return found, not apart


def others(decoder: Decoder) -> list[tuple[str, Decoder]]:
    """What is tried where an arm's own forward differs from run to run: its attention is what the fused arms lack."""
    whole = -(-decoder.length // TILE) * TILE
    return [
        (f"in a cache of {whole} slots", Decoder(decoder.model, whole, fused=False)),
        ("without cuDNN's attention", Decoder(decoder.model, decoder.length, fused=False, cudnn=False)),
    ]


def tokens(decoders: dict[str, Decoder], ids: Tensor) -> dict[str, Tensor]:
    """Output of each arm. One that fails is left out; one that differs from run to run is tried in other ways."""
    found = {}
    for name in list(decoders):
        try:
            found[name], right = reproducible(name, decoders[name], ids)
            for how, other in [] if right or decoders[name].fused else others(decoders[name]):
                output, right = reproducible(f"{name} {how}", other, ids)
                if right:
                    found[name], decoders[name] = output, other
                    break
        except Exception as error:
            say(f"FAILED {name}: {type(error).__name__}: {str(error)[:400]}")
            del decoders[name]
    return found


def compared(model: Any, decoders: dict[str, Decoder], outputs: dict[str, Tensor], ids: Tensor) -> None:
    """What the outputs have to do with each other; a check that fails does not take the others with it."""
    base = "stock" if "stock" in decoders else next(iter(decoders))
    calls: list[Callable[[], str]] = [
        lambda name=name: parting(base, name, decoders, outputs, ids)  # type: ignore[misc]
        for name in decoders
        if name != base
    ]
    calls += [lambda name=name: forced(name, model, ids, outputs[name]) for name in decoders]  # type: ignore[misc]
    if ids.is_cuda:
        calls += [lambda name=name: kernels(name, decoders[name], ids) for name in decoders]  # type: ignore[misc]
    for call in calls:
        try:
            say(call())
        except Exception as error:
            say(f"FAILED check: {type(error).__name__}: {str(error)[:400]}")


def timed(device: str, call: Callable[[], None]) -> float:
    """Seconds until the device has done it."""
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def samples(options: argparse.Namespace, decoders: dict[str, Decoder], ids: Tensor) -> dict[str, list[float]]:
    """Milliseconds a step, all arms in a fresh random order each time."""
    found: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(options.repeats):
        for name in random.sample(list(decoders), len(decoders)):
            decoders[name].prefill(ids)
            seconds = timed(options.device, lambda name=name: decoders[name].run(TOKENS - 1))  # type: ignore[misc]
            found[name].append(seconds / (TOKENS - 1) * 1e3)
    return found


def tell(decoders: dict[str, Decoder], times: dict[str, list[float]], bandwidth: float) -> None:
    """Tokens a second of every arm, its ratio and its floor."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    for name, milliseconds in medians.items():
        read = step_bytes(decoders[name].model, PROMPT + TOKENS // 2)
        floor = read / bandwidth * 1e3
        ratios = [f"{medians[other] / milliseconds:.3f}x {other}" for other in medians if other != name]
        say(
            f"RESULT {name}: {1e3 / milliseconds:.1f} tok/s, {milliseconds:.3f} ms a step "
            f"({min(times[name]):.3f} to {max(times[name]):.3f}), reads {read / 1e9:.2f} GB, "
            f"{floor / milliseconds:.1%} of the byte floor; {', '.join(ratios)}"
        )


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path("w12-build"), help="for the kernel without a cache")
    options = parser.parse_args()
    gpu = options.device == "cuda"
    compiled = Compilation(options.folder) if gpu else None
    model = build(options.shape, options.device)
    where = torch.cuda.get_device_name() if gpu else "cpu"
    say(f"{sum(p.numel() for p in model.parameters()) / 1e9:.2f}e9 weights on {where}")
    bandwidth = room("w12_gemm.bench").read_bandwidth() if gpu else float("inf")
    say(f"torch {torch.__version__}, read bandwidth {bandwidth / 1e12:.3f} TB/s")
    decoders = arms(options, model, compiled)
    ids = torch.randint(0, model.config.vocab_size, (1, PROMPT), device=options.device)
    outputs = tokens(decoders, ids)
    tell(decoders, samples(options, decoders, ids), bandwidth)
    compared(model, decoders, outputs, ids)
    if gpu:
        say(f"peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
