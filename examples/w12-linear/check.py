"""W12 inside the patched engine, on this GPU, before a server is timed: bits, error bounds, graphs, the refusal.

Run by `compare.py` in the engine's own interpreter and import path. Prints one line a fact; any failure ends it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "kernels" / "_testing"))
import mount

mount.mount()
linear = import_module("sglang.srt.layers.quantization.w12.linear")
ops = import_module("sglang.srt.layers.quantization.w12.ops")
inputs = import_module("specpilot_kernels._testing.inputs")
gemm_bound = import_module("specpilot_kernels._testing.tolerance").gemm_bound

SHAPES = {"8B qkv": (6144, 4096), "8B o": (4096, 4096), "8B gate_up": (24576, 4096), "8B down": (4096, 12288)}
ODD = {"odd": (1160, 1000), "least": (128, 64)}
ROWS = (1, 8, 17, 32, 48, 64, 100, 256)
MANY = 300
REPEATS = 20


def say(*words: object) -> None:
    """One line."""
    print("check:", *words, flush=True)


def products(name: str, weight: torch.Tensor) -> Any:
    """The kernel within its error bound, with and without a bias; many rows with the bits of the stock product."""
    packed = linear.packed_and_compared(weight, name)
    n, k = weight.shape
    bias = inputs.activations(1, n, "cuda", seed=7)[0]
    wide = weight.double()
    for m in ROWS:
        x = inputs.activations(m, k, "cuda", seed=m)
        total = x.double().abs() @ wide.abs().T
        for b in (None, bias):
            exact = x.double() @ wide.T + (0 if b is None else b.double())
            scale = total + (0 if b is None else b.double().abs())
            y = ops.linear(x, packed, b)
            assert bool(((y.double() - exact).abs() <= gemm_bound(exact, scale, k)).all()), (name, m)
            assert torch.equal(y, ops.linear(x, packed, b)), (name, m)
    x = inputs.activations(MANY, k, "cuda", seed=MANY)
    for b in (None, bias):
        assert torch.equal(ops.linear(x, packed, b), torch.nn.functional.linear(x, weight, b)), (name, MANY)
    return packed


def captured(packed: Any) -> None:
    """Products of few and of many rows replay from a graph with the bits of the eager call."""
    for m in (1, 16, MANY):
        x = inputs.activations(m, packed.shape[1], "cuda", seed=m)
        eager = ops.linear(x, packed, None).clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            before = ops.linear(x, packed, None)[:, : packed.shape[1]]  # a chain: the second starts early, behind this
            y = ops.linear(x + 0 * before, packed, None)
        for _ in range(3):
            y.fill_(float("nan"))
            graph.replay()
            assert torch.equal(y, eager), m


def refused(weight: torch.Tensor) -> None:
    """One flipped bit in what the kernels read is found, and its channel named."""
    packed = linear.packed_and_compared(weight, "model.layers.0.mlp.gate_up_proj")
    packed.records.view(-1)[12288 * 5 + 17] ^= 4
    try:
        linear.compare(weight, ops.expanded(packed), "model.layers.0.mlp.gate_up_proj")
    except linear.W12LoadError as error:
        say("a flipped bit is refused:", error)
        return
    raise AssertionError("a flipped bit was not noticed")


def milliseconds(call: Callable[[], object]) -> float:
    """Mean of a captured call."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            call()
    graph.replay()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - begin) / REPEATS * 1e3


def main() -> None:
    """All of it."""
    begin = time.perf_counter()
    ops.make_ready(torch.cuda.current_device())
    say(f"kernels ready after {time.perf_counter() - begin:.1f} s (compiled where the cache had none)")
    for name, (n, k) in {**ODD, **SHAPES}.items():
        make = inputs.adversarial_weight if name in ODD else inputs.realistic_weight
        packed = products(name, make(n, k, "cuda", seed=n))
        say(f"{name} {n}x{k}: {len(ROWS)} row counts within the bound, {MANY} rows bit for bit as cuBLAS")
        if name == "8B gate_up":
            captured(packed)
            say("graphs of 1, 16 and 300 rows replay bit for bit")
    weight = inputs.realistic_weight(24576, 4096, "cuda", seed=1)
    refused(weight)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        packed = linear.packed_and_compared(weight, "gate_up")
    torch.cuda.synchronize()
    say(f"packed and compared: {5 * weight.numel() * 2 / (time.perf_counter() - begin) / 1e9:.1f} GB of BF16 a second")
    expand = milliseconds(lambda: ops.expanded(packed))
    say(f"decoding gate_up for many rows: {expand * 1e3:.1f} us, {weight.numel() * 3.5 / expand / 1e9:.2f} TB/s moved")
    say(f"peak memory of all this: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


if __name__ == "__main__":
    main()
