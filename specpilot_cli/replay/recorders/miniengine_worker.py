"""Runs beside a miniengine worktree: the stock trajectory of each request, and a lattice at every output position.

A script of its own (`python miniengine_worker.py JOB.json`), so that an engine under test runs in a process that
knows nothing of this package. It imports torch and the worktree's `miniengine`. One line of JSON on stdout says that
a group of requests is in its file.

The trajectory is the engine's own `Decoder`. The lattices come from one teacher-forced pass over prompt and output:
target features of all positions at once, then the engine's own drafter and `build_lattice` for a batch of anchors.
They differ from what the engine drafted while decoding by float32 rounding only (a verify pass has other row counts).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from miniengine.arguments import parse_arguments
from miniengine.cache import KVSlots
from miniengine.decode import PREFILL_ROWS, Decoder, Request
from miniengine.drafter import draft_block
from miniengine.lattice import build_lattice
from miniengine.loader import load
from safetensors.torch import save_file

ANCHORS = 32
"""Anchors drafted at a time: 16 MB of transition scores a 16-position DSPARK block and anchor, before the top K."""


def context_of(decoder: Decoder, ids: list[int]) -> KVSlots:
    """The drafter's context over all positions of a text, by prefill passes."""
    cache = decoder.model.new_cache(1, len(ids) + PREFILL_ROWS)
    assert decoder.drafter is not None
    context = decoder.drafter.new_context(1, len(ids) + PREFILL_ROWS, decoder.model.embed)
    for start in range(0, len(ids), PREFILL_ROWS):
        part = torch.tensor([ids[start : start + PREFILL_ROWS]])
        decoder.commit(cache, context, decoder.model(part, cache), torch.tensor([part.shape[1]]))
    return context


def lattices_at(decoder: Decoder, text: list[int], places: list[int]) -> list[torch.Tensor]:
    """ids, logprobs and transitions of the drafts behind the anchors at these absolute positions."""
    model, drafter, parts = decoder.model, decoder.drafter, []
    assert drafter is not None
    context = context_of(decoder, text)
    head = model.embed if model.head is None else model.head
    for start in range(0, len(places), ANCHORS):
        at = torch.tensor(places[start : start + ANCHORS])
        longest = int(at.max())
        past = [c[:, :, :longest].expand(-1, len(at), -1, -1, -1) for c in (context.k, context.v)]
        anchors = torch.tensor([text[p] for p in at.tolist()])
        rows = drafter(model.embed[anchors], draft_block(model, at, longest, decoder.draft_tokens), *past)
        lattice = build_lattice(drafter, head, rows, anchors)
        parts.append((lattice.ids, lattice.logprobs, lattice.transitions))
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def record(decoder: Decoder, prompt: list[int], tokens: int) -> dict[str, torch.Tensor]:
    """One request: the output goes on behind `tokens` until every recorded step's continuation is known."""
    depth = decoder.draft_tokens
    request = Request(prompt, tokens + depth + 2, ignore_eos=True)
    decoder.generate([request])
    text, count = prompt + request.output, tokens - 1
    ids, logprobs, transitions = lattices_at(decoder, text, [len(prompt) + o for o in range(count)])
    accepted, at = torch.full((count,), -1), 0
    for taken in request.accept_lengths:
        if at < count:
            accepted[at] = taken - 1
        at += taken
    output = torch.tensor(request.output)
    window = output[torch.arange(count).unsqueeze(1) + torch.arange(depth + 2)]
    bonus = window.gather(1, 1 + accepted.clamp(0).unsqueeze(1)).squeeze(1)
    integers = {
        "offset": torch.arange(count), "anchor": window[:, 0], "ids": ids, "continuation": window[:, 1:],
        "accepted": accepted, "bonus": torch.where(accepted < 0, -1, bonus), "text": torch.tensor(text),
    }  # fmt: skip
    arrays = {name: value.to(torch.int32).contiguous() for name, value in integers.items()}
    return arrays | {"logprobs": logprobs.contiguous(), "transitions": transitions.contiguous()}


@torch.inference_mode()
def main() -> int:
    """Work through the job file's groups."""
    job: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    arguments = parse_arguments(job["server_args"])
    torch.set_num_threads(arguments.num_threads)
    torch.manual_seed(arguments.random_seed)
    model, drafter = load(arguments.model_path, arguments.speculative_algorithm, getattr(torch, arguments.dtype))
    decoder = Decoder.of(model, drafter, arguments)
    print(json.dumps({"vocab_size": model.config.vocab_size}), flush=True)
    for number, group in enumerate(job["groups"]):
        arrays: dict[str, torch.Tensor] = {}
        for index, prompt in enumerate(group):
            found = record(decoder, prompt, job["tokens"])
            arrays |= {f"{index}.{name}": value for name, value in found.items()}
        path = Path(job["folder"]) / f"group-{number}.safetensors"
        save_file(arrays, path)
        print(json.dumps({"file": str(path)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
