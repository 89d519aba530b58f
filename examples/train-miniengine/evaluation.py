"""tau of the shipped engine on held-out prompts, and the oracle over the same candidates."""

from __future__ import annotations

from typing import Any

import torch
from miniengine.decode import Decoder, Request
from miniengine.drafter import Drafter
from miniengine.model import Model


def oracle_drafts(step: dict[str, Any], text: list[int]) -> int:
    """Leading draft positions whose candidates hold the target's token (text: prompt and output)."""
    following = text[step["position"] + 1 :]
    count = 0
    for candidates, token in zip(step["candidates"], following, strict=False):
        if token not in candidates:
            break
        count += 1
    return count


def repeated_share(output: list[int], width: int = 8) -> float:
    """Share of positions whose last `width` tokens stood in the output before: how much of it is a loop."""
    seen: set[tuple[int, ...]] = set()
    repeats = 0
    for end in range(width, len(output) + 1):
        gram = tuple(output[end - width : end])
        repeats += gram in seen
        seen.add(gram)
    return repeats / max(1, len(output) - width + 1)


@torch.inference_mode()
def evaluate(model: Model, drafter: Drafter | None, prompts: list[list[int]], m: int, limit: int) -> dict[str, Any]:
    """Counters over all prompts at batch 1: tau, oracle tau (on stock's steps), share of loops, outputs."""
    steps = correct = oracle = total = 0
    loops, outputs = [], []
    decoder = Decoder(model, drafter, m)
    for prompt in prompts:
        request = Request(prompt, limit, ignore_eos=True)
        decoder.generate([request], want_lattice=drafter is not None)
        outputs.append(request.output)
        loops.append(repeated_share(request.output))
        steps += len(request.accept_lengths)
        correct += sum(request.accept_lengths) - len(request.accept_lengths)
        inside = [s for s in request.lattice if s["position"] + m < len(prompt) + limit]  # a full block before the cut
        total += len(inside)
        oracle += sum(oracle_drafts(s, prompt + request.output) for s in inside)
    return {
        "tau": 1 + correct / steps if steps else 1.0,
        "oracle_tau": 1 + oracle / total if total else 1.0,
        "verify_steps": steps,
        "repeated_share": sum(loops) / len(loops),
        "outputs": outputs,
    }
