"""`quantize`: every linear of a causal LM that can be W12 becomes W12, in place, compared bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from torch import nn

from specpilot_cli.w12 import SKIP
from specpilot_cli.w12.transformers.linear import W12Linear, takes
from specpilot_cli.w12.transformers.merge import merge as merge_siblings


@dataclass
class Report:
    """What was replaced; `left` are linears that stay as they were, by name."""

    replaced: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    bytes_before: int = 0
    bytes_after: int = 0


def _kept_exact(model: nn.Module) -> set[int]:
    """Weights of the output head and of embeddings: a linear with one of them stays."""
    found = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    return found | ({id(head.weight)} if head is not None else set())


def _by_weight(model: nn.Module, stays: Callable[[str], bool], report: Report) -> list[list[str]]:
    """Names of the linears to replace; those that share weight and bias are one list. Holds no module alive."""
    exact = _kept_exact(model)
    found: dict[tuple[int, int], list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is not nn.Linear or not name:
            continue
        if stays(name) or id(module.weight) in exact or not takes(module):
            report.left.append(name)
        else:
            found.setdefault((id(module.weight), id(module.bias)), []).append(name)
    return list(found.values())


def quantize(
    model: nn.Module,
    *,
    skip: str = SKIP,
    merge: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Replaces linears by W12 linears, in place, on the device where they are; each is freed before the next is packed.

    As they are stay: the output head, linears tied to an embedding, names that match `skip`, other types than BF16,
    less than one record tile, odd shapes, subclasses of `nn.Linear`, experts that are no linears. `merge`: query, key
    and value, gate and up become one product each. A layer that stands in several places is packed once.

    Raises:
        InputUnusable: packed bits differ from the weight; names tensor and channel.
    """
    pattern = re.compile(skip) if skip else None

    def stays(name: str) -> bool:
        return bool(pattern and pattern.search(f"{name}.weight"))

    if merge:
        merge_siblings(model, stays)
    report = Report()
    for names in _by_weight(model, stays, report):
        linear = model.get_submodule(names[0])
        assert isinstance(linear, nn.Linear)
        made = W12Linear(linear.weight, linear.bias, f"{names[0]}.weight").train(linear.training)
        report.bytes_before += linear.weight.numel() * linear.weight.element_size()
        report.bytes_after += made.bytes_held
        for name in names:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, made)
            report.replaced.append(name)
            if progress:
                progress(name)
        del linear
    return report
