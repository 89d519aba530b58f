"""Target on text; continuations by the target; drafters on the target's features."""

from __future__ import annotations

import functools
import math
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from miniengine.decode import Decoder, Request
from miniengine.drafter import Drafter
from miniengine.layers import Block
from miniengine.model import Model
from recipe import Recipe
from torch import Tensor, nn

SAVE_EVERY = 200


def generator(recipe: Recipe, stage: int, step: int) -> torch.Generator:
    """Randomness of one step, so that a resumed run draws what an unbroken one would."""
    return torch.Generator().manual_seed(recipe.seed + stage * 1_000_003 + step * 7919)


def rate_at(step: int, steps: int, peak: float) -> float:
    """Linear warm-up over 4 % of the steps, then a cosine to 2 % of the peak."""
    warm = max(1, steps // 25)
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.02 + 0.49 * (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))))


def optimizer_of(module: nn.Module, peak: float) -> torch.optim.AdamW:
    """AdamW; norms, gates and embeddings are not decayed."""
    decayed = [p for name, p in module.named_parameters() if p.dim() == 2 and "embed" not in name]
    kept = {id(p) for p in decayed}
    others = [p for p in module.parameters() if id(p) not in kept]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=peak, betas=(0.9, 0.95))


def steps_of(
    name: str, module: nn.Module, steps: int, peak: float, folder: Path, loss_at: Callable[[int], Tensor]
) -> None:
    """Run an optimisation, resuming from and saving to `folder/name.pt`; progress on stdout."""
    path, optimizer, first = folder / f"{name}.pt", optimizer_of(module, peak), 0
    if path.exists():
        saved: dict[str, Any] = torch.load(path, map_location=next(module.parameters()).device, weights_only=True)
        module.load_state_dict(saved["module"])
        first = saved["step"]
        if first < steps:
            optimizer.load_state_dict(saved["optimizer"])
    started, mean = time.perf_counter(), 0.0
    for step in range(first, steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, steps, peak)
        loss = loss_at(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if done % 50 == 0 or done == steps:
            mean = loss.item()
            seconds = (time.perf_counter() - started) / (done - first)
            print(f"{name} {done}/{steps} loss {mean:.3f} {seconds * 1e3:.1f} ms/step", flush=True)
        if done % SAVE_EVERY == 0 or done == steps:
            state = {"module": module.state_dict(), "optimizer": optimizer.state_dict(), "step": done}
            torch.save(state, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)


def start_small(model: Model) -> None:
    """Scale what is added to the residual stream by 1 / sqrt(2 layers), as GPT-2 does."""
    scale = (2 * len(model.config.layer_types)) ** -0.5
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith((".out", ".down")):
                parameter.mul_(scale)


def train_target(recipe: Recipe, model: Model, stream: Tensor, folder: Path) -> None:
    """Next-token cross entropy on random windows of the token stream."""
    device = model.embed.device

    def loss_at(step: int) -> Tensor:
        starts = torch.randint(
            len(stream) - recipe.target_rows - 1, (recipe.target_batch, 1), generator=generator(recipe, 1, step)
        )
        window = stream[starts + torch.arange(recipe.target_rows + 1)].to(device)
        out = model(window[:, :-1], model.new_cache(recipe.target_batch, 0))
        return F.cross_entropy(model.logits(out.hidden).flatten(0, 1), window[:, 1:].flatten())

    steps_of("target", model, recipe.target_steps, recipe.target_rate, folder, loss_at)


def continuations(recipe: Recipe, model: Model, stream: Tensor, folder: Path, batch: int) -> Tensor:
    """Greedy continuations of random training prompts, [count, prompt + new]; kept in `folder`."""
    path = folder / "continuations.pt"
    if path.exists():
        saved: Tensor = torch.load(path, weights_only=True)
        return saved
    starts = torch.randint(
        len(stream) - recipe.prompt_tokens, (recipe.continuations, 1), generator=generator(recipe, 2, 0)
    )
    prompts = stream[starts + torch.arange(recipe.prompt_tokens)]
    decoder, rows = Decoder(model), []
    for part in torch.split(prompts, batch):
        requests = [Request(p, recipe.new_tokens, ignore_eos=True) for p in part.tolist()]
        rows += [r.prompt + r.output for r in decoder.generate(requests).requests]
        print(f"continuations {len(rows)}/{recipe.continuations}", flush=True)
    result = torch.tensor(rows)
    torch.save(result, path)
    return result


def anchor_block(model: Model, starts: Tensor, slots: int, rows: int) -> Block:
    """Block [N, rows] from positions `starts` [N] over the first `starts` of `slots` context positions."""
    positions = starts.unsqueeze(1) + torch.arange(rows, device=starts.device)
    unseen = torch.arange(slots, device=starts.device) >= starts.unsqueeze(1)
    context = torch.zeros(unseen.shape, device=starts.device).masked_fill(unseen, float("-inf"))
    own = torch.zeros(len(starts), rows, device=starts.device)
    mask = torch.cat((context, own), 1)[:, None, None].expand(-1, 1, rows, -1)
    return Block(model.cos[positions], model.sin[positions], mask, own)


def drafter_loss(recipe: Recipe, model: Model, drafter: Drafter, ids: Tensor, features: Tensor, step: int) -> Tensor:
    """Cross entropy of the target's own next tokens from random anchors, predecessors teacher-forced."""
    draw = generator(recipe, 3, step)
    rows = recipe.blocks[int(torch.randint(len(recipe.blocks), (1,), generator=draw))]
    count, slots = ids.shape
    low, high = recipe.prompt_tokens, slots - max(recipe.blocks)
    starts = torch.randint(low, high, (count, recipe.anchors), generator=draw).to(ids.device).flatten()
    owner = torch.arange(count, device=ids.device).repeat_interleave(recipe.anchors)
    k, v = drafter.project(features, model.cos[:slots], model.sin[:slots])
    block = anchor_block(model, starts, slots, rows)
    hidden = drafter(model.embed[ids[owner, starts]], block, k[:, owner], v[:, owner])
    path = ids[owner.unsqueeze(1), starts.unsqueeze(1) + torch.arange(rows + 1, device=ids.device)]
    unary = F.linear(hidden, model.embed)
    pair = drafter.pair_bias(path[:, :-1], hidden) @ drafter.successor.mT
    weights = torch.exp(-torch.arange(rows, device=ids.device) / recipe.position_decay)

    def entropy(logits: Tensor) -> Tensor:
        each = F.cross_entropy(logits.flatten(0, 1), path[:, 1:].flatten(), reduction="none").view(-1, rows)
        return (each * weights).sum() / (weights.sum() * len(each))

    return entropy(unary + pair) + recipe.unary_weight * entropy(unary)


def features_of(model: Model, ids: Tensor, batch: int) -> Tensor:
    """The target's features of every continuation, [count, T, F] in bfloat16 on the CPU (about 1 GB)."""
    parts = []
    with torch.no_grad():
        for part in torch.split(ids, batch):
            out = model(part.to(model.embed.device), model.new_cache(len(part), 0))
            parts.append(out.features.to("cpu", torch.bfloat16))
    return torch.cat(parts)


def train_drafters(recipe: Recipe, model: Model, drafters: dict[str, Drafter], ids: Tensor, folder: Path) -> None:
    """Each drafter on the same batches; the target's features are computed once, since the target is frozen."""

    @functools.cache
    def features() -> Tensor:
        return features_of(model, ids, recipe.drafter_batch)

    def loss_of(drafter: Drafter, step: int) -> Tensor:
        picked = torch.randint(len(ids), (recipe.drafter_batch,), generator=generator(recipe, 4, step))
        batch, device = ids[picked].to(model.embed.device), model.embed.device
        return drafter_loss(recipe, model, drafter, batch, features()[picked].to(device).float(), step)

    def train(name: str, threads: int) -> None:
        torch.set_num_threads(threads)
        loss_at = functools.partial(loss_of, drafters[name])
        steps_of(name.lower(), drafters[name], recipe.drafter_steps, recipe.drafter_rate, folder, loss_at)

    if model.embed.device.type == "cpu":  # a step is too small for two threads to help: side by side is faster
        _side_by_side(train, list(drafters))
    for name in drafters:  # where all steps are done already, this only loads them
        train(name, torch.get_num_threads())


def _side_by_side(train: Callable[[str, int], None], names: list[str]) -> None:
    """One process and half of the threads for each drafter."""
    fork, threads = multiprocessing.get_context("fork"), max(1, torch.get_num_threads() // len(names))
    children = [fork.Process(target=train, args=(name, threads)) for name in names]
    for child in children:
        child.start()
    for child in children:
        child.join()
    if any(child.exitcode for child in children):
        raise SystemExit("a drafter's training failed; what it said is above")


def stream_of(parts: Iterator[list[int]], end: int) -> Tensor:
    """One token stream with an end token behind every file."""
    tokens: list[int] = []
    for ids in parts:
        tokens += ids
        tokens.append(end)
    return torch.tensor(tokens)
