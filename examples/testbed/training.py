"""All drafters of a target on the same batches: the target's features are computed once a step for all of them."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from recipe import Recipe
from torch import Tensor, nn

from specpilot_cli.testbed.nn import fused
from specpilot_cli.testbed.nn.acceptance import Texts, tau_of
from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.eagle3 import EagleHead
from specpilot_cli.testbed.nn.features import Features, Live, features_of
from specpilot_cli.testbed.nn.generate import Target
from specpilot_cli.testbed.nn.losses import Soft, block_loss, draw_anchors, eagle_loss, hard_anchors
from specpilot_cli.testbed.nn.muon import Muon

Drafter = BlockDrafter | EagleHead
LOG_EVERY = 50
WIDTH = 64
CANDIDATES = 4
"""Positions drawn for each anchor that is kept where the recipe prefers hard ones."""


def rate_at(progress: float, peak: float, warm_up: float = 0.04) -> float:
    """Linear warm-up over the first 4 %, then a cosine to 2 % of the peak."""
    if progress < warm_up:
        return peak * (progress + 1e-4) / warm_up
    return peak * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, (progress - warm_up) / (1 - warm_up)))))


class Several:
    """Optimisers that are stepped, saved and given their rate together."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Of all."""
        return [group for part in self.parts for group in part.param_groups]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As each does it."""
        for part in self.parts:
            part.zero_grad(set_to_none=set_to_none)

    def step(self) -> None:
        """One step of each."""
        for part in self.parts:
            part.step()

    def state_dict(self) -> dict[str, Any]:
        """One after the other."""
        return {"parts": [part.state_dict() for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from `state_dict`."""
        for part, saved in zip(self.parts, state["parts"], strict=True):
            part.load_state_dict(saved)


def optimizer_of(module: nn.Module, recipe: Recipe) -> Several:
    """AdamW; with `optimizer=muon` Muon for the backbone's matrices, at AdamW's step size. Only those are decayed."""
    table = ("codebook", "markov")
    decayed = [p for n, p in module.named_parameters() if p.dim() == 2 and not any(word in n for word in table)]
    kept = {id(p) for p in decayed}
    others = [p for p in module.parameters() if id(p) not in kept]
    adamw = {"lr": recipe.rate, "betas": (0.9, 0.95), "fused": kept_on(module) == "cuda"}
    plain = torch.optim.AdamW(others, weight_decay=0.0, **adamw)
    if recipe.optimizer == "muon":
        return Several(Muon(decayed, lr=recipe.rate, weight_decay=recipe.weight_decay), plain)
    return Several(torch.optim.AdamW(decayed, weight_decay=recipe.weight_decay, **adamw), plain)


def kept_on(module: nn.Module) -> str:
    """Type of the device that the parameters are on."""
    return next(module.parameters()).device.type


@dataclass
class Clock:
    """How far the training is: by steps, or by minutes of training where a limit is given."""

    steps: int
    minutes: float | None
    step: int = 0
    before_s: float = 0.0
    """Seconds of earlier, interrupted runs."""
    started: float = field(default_factory=time.perf_counter)

    @property
    def seconds(self) -> float:
        return self.before_s + time.perf_counter() - self.started

    @property
    def progress(self) -> float:
        """0 .. 1."""
        return self.seconds / (60 * self.minutes) if self.minutes else self.step / self.steps


class Training:
    """Drafters, their optimisers and their clock; saved to and resumed from one file."""

    def __init__(
        self, recipe: Recipe, target: Target, drafters: dict[str, Drafter], work: Path, minutes: float | None
    ) -> None:
        self.recipe, self.target, self.drafters = recipe, target, drafters
        self.path, self.device = work / "drafters.pt", target.embedding.device
        self.optimizers = {name: optimizer_of(module, recipe) for name, module in drafters.items()}
        self.clock = Clock(recipe.steps, minutes)
        wanted = {i for d in drafters.values() for i in d.config.target_layer_ids}
        self.layers = tuple(sorted(wanted))
        self.stopping = self.warm = False
        self.features: Features | None = None
        self._resume()

    def _resume(self) -> None:
        if not self.path.exists():
            return
        saved: dict[str, Any] = torch.load(self.path, map_location=self.device, weights_only=True)
        for name, module in self.drafters.items():
            module.load_state_dict(saved[name]["module"])
            self.optimizers[name].load_state_dict(saved[name]["optimizer"])
        self.clock.step, self.clock.before_s = saved["step"], saved["seconds"]
        print(f"drafters: going on from step {self.clock.step}", flush=True)

    def save(self) -> None:
        """Whole or not at all."""
        state: dict[str, Any] = {
            name: {"module": module.state_dict(), "optimizer": self.optimizers[name].state_dict()}
            for name, module in self.drafters.items()
        }
        torch.save({**state, "step": self.clock.step, "seconds": self.clock.seconds}, self.path.with_suffix(".tmp"))
        self.path.with_suffix(".tmp").replace(self.path)

    def autocast(self) -> torch.autocast:
        """BF16 products on a GPU; plain float32 on a CPU."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.device.type == "cuda")

    def run(self, texts: Texts, evaluate: Callable[[], None]) -> None:
        """Until the clock says so; `evaluate` prints. SIGTERM saves and ends it (exit 143); a rerun goes on."""
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stopping", True))
        self.ready(texts)
        self.clock.started = time.perf_counter()
        evaluated = saved = self.clock.seconds
        while self.clock.progress < 1:
            losses = self.robust_step(texts)
            self.clock.step += 1
            if self.stopping:
                self.save()
                print(f"stopped and saved at step {self.clock.step} ({self.clock.progress:.0%})", flush=True)
                raise SystemExit(128 + signal.SIGTERM)
            if self.clock.step % LOG_EVERY == 0 or self.clock.progress >= 1:
                shown = ", ".join(f"{name} {loss.item():.3f}" for name, loss in losses.items())
                print(f"step {self.clock.step} ({self.clock.progress:.0%}): {shown}", flush=True)
            if self.clock.seconds - evaluated >= self.recipe.evaluate_every_s:
                evaluate()
                evaluated = self.clock.seconds
            if self.clock.seconds - saved >= self.recipe.save_every_s:
                self.save()
                saved = self.clock.seconds
        self.save()

    def robust_step(self, texts: Texts, update: bool = True) -> dict[str, Tensor]:
        """`step`, tried again without what failed: the kept features where memory is full, else the compiled parts."""
        try:
            return self.step(texts, update)
        except torch.OutOfMemoryError:
            if isinstance(self.features, Live):
                raise
            print("features: not kept any more, the GPU's memory is full", flush=True)
            self.features = Live(self.target, texts, self.layers, self.labels)
        except RuntimeError as error:
            if not self.recipe.fuse or fused.failure():
                raise
            fused.give_up(error)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return self.step(texts, update)

    @property
    def labels(self) -> int:
        """Likeliest tokens of each position that the recipe asks for."""
        return self.recipe.soft_labels if self.recipe.softness or self.recipe.hard else 0

    def ready(self, texts: Texts) -> float:
        """Before the clock runs, or the rate's warm-up would be over at the first step; seconds.

        The target's features are made, once, and kept where there is room; steps that change nothing let the parts be
        compiled and the kernels be chosen.
        """
        begun = time.perf_counter()
        if self.features is None:
            self.features = features_of(self.target, texts, self.layers, self.labels)
            print(f"features: {type(self.features).__name__}, {time.perf_counter() - begun:.1f} s", flush=True)
        if not self.warm:
            kept = self.clock.step
            for step in range(max(1, self.recipe.wide_every)):
                self.clock.step = step
                self.robust_step(texts, update=False)
            self.clock.step, self.warm = kept, True
            print(f"ready after {time.perf_counter() - begun:.1f} s", flush=True)
        return time.perf_counter() - begun

    def step(self, texts: Texts, update: bool = True) -> dict[str, Tensor]:
        """One step of every drafter on one batch; what it draws depends on the seed and the step alone."""
        recipe = self.recipe
        if self.features is None:
            self.ready(texts)
        assert self.features is not None
        draw = torch.Generator().manual_seed(recipe.seed + 7919 * self.clock.step)
        chosen = torch.randint(len(texts), (recipe.sequences,), generator=draw)
        batch = texts.part(chosen)
        # few different widths: cuDNN plans its attention anew for each
        longest = min(batch.ids.shape[1], -(-int(batch.lengths.max()) // WIDTH) * WIDTH)
        batch = Texts(batch.ids[:, :longest].contiguous(), batch.first, batch.lengths)
        on = batch.to(self.device)
        features, soft = self.features.batch(chosen, longest)
        starts = self._anchors(batch, on, soft, draw)
        losses = {}
        for name, drafter in self.drafters.items():
            for group in self.optimizers[name].param_groups:
                group["lr"] = rate_at(self.clock.progress, recipe.rate, recipe.warm_up)
            with self.autocast(), fused.compiled(wanted=bool(recipe.fuse)):
                loss = self._loss(name, drafter, on, self._chosen(features, drafter), soft, starts, batch)
            self.optimizers[name].zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            if update:
                self.optimizers[name].step()
            losses[name] = loss.detach()
        return losses

    def _anchors(self, there: Texts, texts: Texts, soft: Soft | None, draw: torch.Generator) -> Tensor:
        """Where blocks begin, on the device; `there` is the same batch on the CPU."""
        count, hard = self.recipe.anchors, self.recipe.hard if soft is not None else 0.0
        starts = draw_anchors(there.first, there.lengths - 2, CANDIDATES * count if hard else count, draw)
        chance = torch.rand(starts.shape, generator=draw) if hard else None
        starts = starts.to(self.device, non_blocking=True)
        if soft is None or chance is None:
            return starts
        return hard_anchors(texts.ids, soft, starts, chance.to(self.device, non_blocking=True), count, hard)

    def _chosen(self, features: Tensor, drafter: Drafter) -> Tensor:
        if drafter.config.target_layer_ids == self.layers:
            return features
        parts = features.split(self.target.embedding.shape[1], -1)
        return torch.cat([parts[self.layers.index(i)] for i in drafter.config.target_layer_ids], -1)

    def _loss(
        self,
        name: str,
        drafter: Drafter,
        texts: Texts,
        features: Tensor,
        soft: Soft | None,
        starts: Tensor,
        there: Texts,
    ) -> Tensor:
        """Of one drafter; `there` is the same batch on the CPU."""
        recipe, target = self.recipe, self.target
        if isinstance(drafter, EagleHead):
            some = slice(0, recipe.eagle_sequences)
            return eagle_loss(
                drafter, texts.ids[some], there.first[some], there.lengths[some], features[some], target.embedding,
                target.head, depth=recipe.eagle_depth, decay=recipe.eagle_decay,
                soft=None if soft is None else (soft[0][some], soft[1][some]), softness=recipe.softness,
            )  # fmt: skip
        choices = recipe.dflash2_rows if name == "dflash2" else recipe.dspark_rows
        wide = len(choices) > 1 and recipe.wide_every and self.clock.step % recipe.wide_every == recipe.wide_every - 1
        return block_loss(
            drafter, texts.ids, texts.lengths, features, starts, choices[1 if wide else 0], target.embedding,
            target.head, decay=recipe.position_decay, unary_share=recipe.unary_share, reach=recipe.reach, soft=soft,
            softness=recipe.softness,
        )  # fmt: skip

    def taus(self, texts: Texts, batch: int = 16) -> dict[str, float]:
        """tau of every drafter at its first block length, on `texts` (on the CPU)."""
        found = {}
        for name, drafter in self.drafters.items():
            rows = rows_of(self.recipe, name)[0]
            with self.autocast():
                found[f"{name}@{rows}"] = round(tau_of(drafter, self.target, texts.to(self.device), rows, batch).tau, 3)
        return found


def rows_of(recipe: Recipe, name: str) -> tuple[int, ...]:
    """Block lengths of a drafter (depth of the chain for EAGLE-3)."""
    return {"dflash2": recipe.dflash2_rows, "dspark": recipe.dspark_rows}.get(name, (recipe.eagle_depth,))
