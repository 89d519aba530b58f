"""Where the time of a training step goes: the target, the drafter forward and backward, the logits, the optimizer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from training import Training

from specpilot_cli.testbed.nn import losses
from specpilot_cli.testbed.nn.acceptance import Texts

REPEATS = 5


def timed(call: Callable[[], Any], cuda: bool) -> float:
    """Milliseconds a call, over a few, waiting for the GPU before and behind all of them."""
    call()
    if cuda:
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(REPEATS):
        call()
    if cuda:
        torch.cuda.synchronize()
    return round((time.perf_counter() - begun) / REPEATS * 1e3, 2)


def without_logits(rows: torch.Tensor, head: torch.Tensor, *others: Any, **named: Any) -> torch.Tensor:
    """In place of `head_entropy`: something to differentiate that costs nothing."""
    pair = named.get("pair")
    total = rows.float().sum()
    return total if pair is None else total + pair[0].float().sum() + pair[1].float().sum()


def profiled(training: Training, texts: Texts) -> dict[str, Any]:
    """Milliseconds of a whole step, of one without logits, of the target's pass, and the longest GPU kernels."""
    cuda = training.device.type == "cuda"

    def step() -> None:
        training.robust_step(texts)
        training.clock.step += 1

    for _ in range(4):
        step()
    kept, clock = losses.head_entropy, training.clock.step
    found: dict[str, Any] = {"step_ms": timed(step, cuda)}
    losses.head_entropy = without_logits
    try:
        training.clock.step = clock
        found["without_logits_ms"] = timed(step, cuda)
    finally:
        losses.head_entropy = kept
    if cuda:
        torch.backends.cuda.enable_cudnn_sdp(False)
        found["without_cudnn_attention_ms"] = timed(step, cuda)
        torch.backends.cuda.enable_cudnn_sdp(True)
    found["optimizer_ms"] = timed(lambda: [o.step() for o in training.optimizers.values()], cuda)
    batch = texts.part(slice(0, training.recipe.sequences)).to(training.device)
    with torch.no_grad():
        found["target_ms"] = timed(lambda: training.target(batch.ids, training.layers), cuda)
    if cuda:
        found["kernels"] = kernels(step)
    return found


def kernels(step: Callable[[], None], count: int = 22) -> dict[str, Any]:
    """Busy time of the GPU in one step and the kernels that take most of it."""
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as seen:
        step()
        torch.cuda.synchronize()
    rows = [e for e in seen.key_averages() if e.self_device_time_total > 0 and str(e.device_type).endswith("CUDA")]
    rows.sort(key=lambda e: -e.self_device_time_total)
    busy = sum(e.self_device_time_total for e in rows) / 1e3
    longest = {f"{e.key[:90]} x{e.count}": round(e.self_device_time_total / 1e3, 2) for e in rows[:count]}
    return {"busy_ms": round(busy, 1), "launched": sum(e.count for e in rows), "longest_ms": longest}
