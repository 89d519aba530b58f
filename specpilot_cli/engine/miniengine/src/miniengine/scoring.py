"""Teacher-forced scoring: log-probabilities and the best alternatives of given tokens, by prefill passes."""

from __future__ import annotations

from typing import Any

import torch

from .decode import PREFILL_ROWS
from .model import Model


@torch.inference_mode()
def score(model: Model, ids: list[int], start: int, top: int) -> dict[str, Any]:
    """Score ids[start + 1:] given what stands before them, in SGLang's shape.

    "input_token_logprobs": one [logprob, id] per position from `start` on, the first with logprob None;
    "input_top_logprobs" and "input_top_logits": per position the `top` best [value, id], best first (equal values:
    lowest id first), None at `start`.  Logits are the raw ones, so that their differences carry no normaliser error.
    """
    device = model.embed.device
    cache = model.new_cache(1, len(ids) + PREFILL_ROWS)
    tokens: list[list[Any]] = [[None, ids[start]]]
    top_logprobs: list[Any] = [None]
    top_logits: list[Any] = [None]
    for begin in range(0, len(ids) - 1, PREFILL_ROWS):
        part = ids[begin : min(begin + PREFILL_ROWS, len(ids) - 1)]
        out = model(torch.tensor([part], device=device), cache)
        cache.commit(out.written, torch.tensor([len(part)], device=device))
        skip = max(0, start - begin)
        if skip >= len(part):
            continue
        logits = model.logits(out.hidden[0, skip:]).float()
        logprobs = logits.log_softmax(-1)
        following = ids[begin + skip + 1 : begin + len(part) + 1]
        chosen = logprobs[torch.arange(len(following)), torch.tensor(following)]
        tokens += [[value, token] for value, token in zip(chosen.tolist(), following, strict=True)]
        order = torch.sort(logits, dim=-1, descending=True, stable=True).indices[:, :top]
        for store, values in ((top_logprobs, logprobs), (top_logits, logits)):
            picked = values.gather(-1, order).tolist()
            store += [[list(p) for p in zip(v, i, strict=True)] for v, i in zip(picked, order.tolist(), strict=True)]
    result: dict[str, Any] = {"input_token_logprobs": tokens}
    if top:
        result |= {"input_top_logprobs": top_logprobs, "input_top_logits": top_logits}
    return result
