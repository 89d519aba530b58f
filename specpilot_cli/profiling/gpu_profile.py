"""Kernels of decode steps → kernel classes with time, FLOP and bytes per step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from specpilot_cli.artifacts.profile import KernelClass
from specpilot_cli.profiling.gpu_classes import ATTACHED, GEMM, LM_HEAD, kernel_class
from specpilot_cli.profiling.gpu_trace import Kernel, Pass, Step
from specpilot_cli.profiling.model_shape import DraftShape, ModelShape
from specpilot_cli.profiling.model_work import (
    Load,
    Product,
    Work,
    accept_work,
    commit_work,
    draft_products,
    draft_work,
    target_products,
    target_work,
)

PHASES = ("draft", "verify", "accept", "commit")
Class = tuple[str, str]
"""(phase, name)."""


@dataclass(frozen=True)
class Models:
    """Shapes of what runs."""

    target: ModelShape
    draft: DraftShape | None


def label(kernels: Sequence[Kernel], models: Models) -> list[Class]:
    """Phase and class of each kernel of one step.

    The products of a pass are named by their order when their number is the model's; otherwise all of them are `gemm`
    (the target's last one still is the LM head).
    """
    names = [kernel_class(kernel.name) for kernel in kernels]
    for phase, expected in _expected(models).items():
        at = [i for i, (k, name) in enumerate(zip(kernels, names, strict=True)) if k.phase == phase and name == GEMM]
        main = [i for i in at if not ATTACHED.search(kernels[i].name)]
        if len(main) == len(expected):
            for i, product in zip(main, expected, strict=True):
                names[i] = product.name
        for i in at:
            if i not in main and i > 0:
                names[i] = names[max((m for m in main if m < i), default=i)]
    return [(kernel.phase, name) for kernel, name in zip(kernels, names, strict=True)]


def _expected(models: Models) -> dict[str, tuple[Product, ...]]:
    found = {"verify": target_products(models.target)}
    if models.draft is not None:
        found["draft"] = draft_products(models.draft)
    return found


def load_of(item: Pass) -> Load:
    """What a marked pass worked on. Without aggregates in the mark, keys and pairs are 0."""
    return Load(item.batch, item.rows, item.kv_tokens, item.pairs, verifies=item.stage != "DECODE")


def step_work(step: Step, models: Models) -> dict[Class, Work]:
    """Work of a step by phase and class."""
    target = load_of(step.target)
    found = {("verify", name): work for name, work in target_work(models.target, target).items()}
    found |= {("accept", name): work for name, work in accept_work(models.target, target).items()}
    if step.draft is not None and models.draft is not None:
        drafted = load_of(step.draft)
        found |= {("draft", name): work for name, work in draft_work(models.draft, drafted).items()}
        found |= {("commit", name): work for name, work in commit_work(models.target, models.draft, target).items()}
    return found


def _settled(works: Mapping[Class, Work], seen: set[Class]) -> dict[Class, Work]:
    """Work of projections that could not be told apart is that of `gemm`."""
    found: dict[Class, Work] = defaultdict(Work)
    for (phase, name), work in works.items():
        key = (phase, name)
        if key not in seen and (name.startswith("gemm") or name == LM_HEAD) and (phase, GEMM) in seen:
            key = (phase, GEMM)
        found[key] = found[key] + work
    return found


def kernel_classes(steps: Sequence[Step], models: Models) -> tuple[KernelClass, ...]:
    """Classes of the steps, as means per step. A class without known work has 0 FLOP and 0 bytes."""
    times: dict[Class, float] = defaultdict(float)
    calls: Counter[Class] = Counter()
    works: dict[Class, Work] = defaultdict(Work)
    for step in steps:
        labels = label(step.kernels, models)
        for kernel, key in zip(step.kernels, labels, strict=True):
            times[key] += kernel.share_us / 1e3
            calls[key] += 1
        for key, work in _settled(step_work(step, models), set(labels)).items():
            works[key] = works[key] + work
    count = len(steps)
    return tuple(
        KernelClass(
            phase=phase,
            name=name,
            time_ms=times[phase, name] / count,
            calls=calls[phase, name] / count,
            flop=works[phase, name].flop / count,
            bytes=works[phase, name].bytes / count,
        )
        for phase, name in sorted(times, key=lambda key: (PHASES.index(key[0]), key[1]))
    )


def unplaced(steps: Sequence[Step], models: Models) -> dict[str, float]:
    """Kernel names that no rule knows, with their milliseconds per step, largest first."""
    found: dict[str, float] = defaultdict(float)
    for step in steps:
        for kernel, (_, name) in zip(step.kernels, label(step.kernels, models), strict=True):
            if name == "other":
                found[kernel.name] += kernel.share_us / 1e3 / len(steps)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def phases_ms(steps: Sequence[Step]) -> dict[str, float]:
    """Mean GPU time per step of each phase; the host gap is the rest of the step."""
    sums = dict.fromkeys(PHASES, 0.0)
    for step in steps:
        for kernel in step.kernels:
            sums[kernel.phase] += kernel.share_us / 1e3
    return {phase: total / len(steps) for phase, total in sums.items()}


def wall_ms(steps: Sequence[Step]) -> float:
    """Mean time from step to step in the trace."""
    return fmean(step.wall_us for step in steps) / 1e3
