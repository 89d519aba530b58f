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

from specpilot_cli.testbed.nn.acceptance import Texts, tau_of
from specpilot_cli.testbed.nn.block_drafter import BlockDrafter
from specpilot_cli.testbed.nn.eagle3 import EagleHead
from specpilot_cli.testbed.nn.generate import Target
from specpilot_cli.testbed.nn.losses import block_loss, draw_anchors, eagle_loss

Drafter = BlockDrafter | EagleHead
LOG_EVERY = 50
WIDTH = 64


def rate_at(progress: float, peak: float) -> float:
    """Linear warm-up over the first 4 %, then a cosine to 2 % of the peak."""
    if progress < 0.04:
        return peak * (progress + 1e-4) / 0.04
    return peak * (0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, (progress - 0.04) / 0.96))))


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
        muon = torch.optim.Muon(
            decayed, lr=recipe.rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        return Several(muon, plain)
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
        self.stopping = False
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
        evaluated = saved = self.clock.seconds
        while self.clock.progress < 1:
            losses = self.step(texts)
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

    def step(self, texts: Texts) -> dict[str, Tensor]:
        """One step of every drafter on one batch; what it draws depends on the seed and the step alone."""
        recipe = self.recipe
        draw = torch.Generator().manual_seed(recipe.seed + 7919 * self.clock.step)
        batch = texts.part(torch.randint(len(texts), (recipe.sequences,), generator=draw))
        # few different widths: cuDNN plans its attention anew for each
        longest = min(batch.ids.shape[1], -(-int(batch.lengths.max()) // WIDTH) * WIDTH)
        batch = Texts(batch.ids[:, :longest], batch.first, batch.lengths)
        starts = draw_anchors(batch.first, batch.lengths - 2, recipe.anchors, draw).to(self.device)
        pick = int(torch.randint(1 << 30, (1,), generator=draw))
        on = batch.to(self.device)
        with torch.no_grad():
            _, features = self.target(on.ids, self.layers)
        losses = {}
        for name, drafter in self.drafters.items():
            for group in self.optimizers[name].param_groups:
                group["lr"] = rate_at(self.clock.progress, recipe.rate)
            with self.autocast():
                loss = self._loss(name, drafter, on, self._chosen(features, drafter), starts, pick, batch)
            self.optimizers[name].zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
            self.optimizers[name].step()
            losses[name] = loss.detach()
        return losses

    def _chosen(self, features: Tensor, drafter: Drafter) -> Tensor:
        parts = features.split(self.target.embedding.shape[1], -1)
        return torch.cat([parts[self.layers.index(i)] for i in drafter.config.target_layer_ids], -1)

    def _loss(
        self, name: str, drafter: Drafter, texts: Texts, features: Tensor, starts: Tensor, pick: int, there: Texts
    ) -> Tensor:
        """Of one drafter; `there` is the same batch on the CPU."""
        recipe, target = self.recipe, self.target
        recompute = bool(recipe.recompute)
        if isinstance(drafter, EagleHead):
            some = slice(0, recipe.eagle_sequences)
            return eagle_loss(
                drafter, texts.ids[some], there.first[some], there.lengths[some], features[some], target.embedding,
                target.head, depth=recipe.eagle_depth, decay=recipe.eagle_decay, recompute=recompute,
            )  # fmt: skip
        choices = recipe.dflash2_rows if name == "dflash2" else recipe.dspark_rows
        return block_loss(
            drafter, texts.ids, texts.lengths, features, starts, choices[pick % len(choices)], target.embedding,
            target.head, decay=recipe.position_decay, unary_weight=recipe.unary_weight, recompute=recompute,
        )  # fmt: skip

    def taus(self, texts: Texts, batch: int = 16) -> dict[str, float]:
        """tau of every drafter at every block length it is trained for, on `texts` (on the CPU)."""
        found = {}
        for name, drafter in self.drafters.items():
            for rows in rows_of(self.recipe, name):
                with self.autocast():
                    found[f"{name}@{rows}"] = tau_of(drafter, self.target, texts.to(self.device), rows, batch).tau
        return found


def rows_of(recipe: Recipe, name: str) -> tuple[int, ...]:
    """Block lengths of a drafter (depth of the chain for EAGLE-3)."""
    return {"dflash2": recipe.dflash2_rows, "dspark": recipe.dspark_rows}.get(name, (recipe.eagle_depth,))
