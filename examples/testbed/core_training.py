"""The hybrid core on the standard library's sources, and its greedy continuations."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from core_recipe import CoreRecipe
from torch import Tensor, nn
from training import Clock, rate_at

from specpilot_cli.testbed.nn.acceptance import Texts
from specpilot_cli.testbed.nn.generate import Generator, greedy
from specpilot_cli.testbed.nn.hybrid import HybridModel, OffsetNorm

NORM_STEP = 2.0**-7
"""Norm weights are multiples of this, so that half of (1 + weight) is still exact in BF16 (see `standin`)."""


def new_core(recipe: CoreRecipe) -> HybridModel:
    """Small embeddings; what is added to the residual stream is scaled by 1 / sqrt(2 layers), as GPT-2 does."""
    model = HybridModel(recipe.config())
    nn.init.normal_(model.model.embed_tokens.weight, std=0.02)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                parameter.mul_((2 * recipe.layers) ** -0.5)
    return model


def core_loss(model: HybridModel, window: Tensor, unused: int) -> Tensor:
    """Next-token cross entropy of window [B, T + 1], with `unused` more tokens whose logits are always zero."""
    hidden, _ = model(window[:, :-1])
    logits = F.linear(hidden, model.head).float().flatten(0, 1)
    bank = logits.new_full((len(logits), 1), math.log(unused))
    return F.cross_entropy(torch.cat((logits, bank), -1), window[:, 1:].flatten())


def optimizer_of(model: HybridModel, recipe: CoreRecipe) -> torch.optim.AdamW:
    """AdamW; norms, gates, convolutions and embeddings are not decayed."""
    decayed = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    kept = {id(p) for p in decayed}
    others = [p for p in model.parameters() if id(p) not in kept]
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=recipe.rate, betas=(0.9, 0.95))


def train_core(
    recipe: CoreRecipe, model: HybridModel, stream: Tensor, held: Tensor, work: Path, minutes: float | None
) -> Clock:
    """Until the clock says so; resumed from and saved to `work`; the held-out loss is printed every minute."""
    path, optimizer, clock = work / "core.pt", optimizer_of(model, recipe), Clock(recipe.steps, minutes)
    device = model.embedding.device
    if path.exists():
        saved: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
        model.load_state_dict(saved["module"])
        optimizer.load_state_dict(saved["optimizer"])
        clock.step, clock.before_s = saved["step"], saved["seconds"]
        print(f"core: going on from step {clock.step}", flush=True)
    unused = recipe.full_vocabulary - recipe.vocabulary
    said = kept = time.perf_counter()
    while clock.progress < 1:
        for group in optimizer.param_groups:
            group["lr"] = rate_at(clock.progress, recipe.rate)
        window = windows(stream, recipe.batch, recipe.rows + 1, recipe.seed + 7919 * clock.step).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = core_loss(model, window, unused)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        clock.step += 1
        now = time.perf_counter()
        if now - said >= 60 or clock.progress >= 1:
            shown = f"{loss.item():.3f}, held out {held_out_loss(recipe, model, held):.3f}"
            print(f"core step {clock.step} ({clock.progress:.0%}): loss {shown}", flush=True)
            said = now
        if now - kept >= 60 or clock.progress >= 1:
            state = {"module": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({**state, "step": clock.step, "seconds": clock.seconds}, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").replace(path)
            kept = now
    return clock


def windows(stream: Tensor, count: int, rows: int, seed: int) -> Tensor:
    """Random windows [count, rows] of a token stream."""
    draw = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(stream) - rows, (count, 1), generator=draw)
    return stream[starts + torch.arange(rows)]


@torch.no_grad()
def held_out_loss(recipe: CoreRecipe, model: HybridModel, held: Tensor) -> float:
    """On a fixed batch."""
    window = windows(held, recipe.batch, recipe.rows + 1, 0).to(model.embedding.device)
    with torch.autocast(window.device.type, dtype=torch.bfloat16, enabled=window.device.type == "cuda"):
        return core_loss(model, window, recipe.full_vocabulary - recipe.vocabulary).item()


@torch.no_grad()
def snap(model: HybridModel) -> None:
    """Round to what ships: BF16, and the offset norms of the residual stream to multiples of NORM_STEP."""
    width = model.config.hidden_size
    for module in model.modules():
        if isinstance(module, OffsetNorm) and len(module.weight) == width:
            module.weight.copy_((module.weight / NORM_STEP).round() * NORM_STEP)
    for parameter in model.parameters():
        parameter.copy_(parameter.bfloat16())


def continuations(recipe: CoreRecipe, model: HybridModel, stream: Tensor, count: int, seed: int, path: Path) -> Texts:
    """Greedy continuations of random windows, kept in `path`."""
    new, prompt = recipe.drafters.new_tokens, recipe.prompt_tokens
    if not path.exists():
        generator = Generator(model, min(recipe.drafters.batch, count), prompt + new)
        prompts, rows = windows(stream, count, prompt, seed).tolist(), []
        started = time.perf_counter()
        for at in range(0, count, generator.batch):
            part = prompts[at : at + generator.batch]
            rows += [p + a for p, a in zip(part, generator.run(part, new, greedy, None), strict=True)]
        print(f"continuations: {count * new / (time.perf_counter() - started):,.0f} tokens/s", flush=True)
        path.write_text(json.dumps(rows))
    ids = torch.tensor(json.loads(path.read_text()))
    full = torch.full((len(ids),), ids.shape[1])
    return Texts(ids, torch.full_like(full, prompt), full)
