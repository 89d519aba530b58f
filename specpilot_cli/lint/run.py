"""All checks on one pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from specpilot_cli.lint import configs, engine_flags, tensors
from specpilot_cli.lint.expected import unchecked
from specpilot_cli.lint.finding import Finding
from specpilot_cli.lint.pair import Pair

Check = Callable[[Pair], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    tensors.absent,
    tensors.names,
    tensors.shapes,
    tensors.embedding,
    configs.hidden_size,
    configs.vocabulary,
    configs.capture_hook,
    configs.capture_layers,
    configs.mask_token,
    configs.drafter_config,
    configs.context,
    engine_flags.algorithm,
    engine_flags.block,
    engine_flags.quantization,
    engine_flags.trees,
    engine_flags.graphs,
    engine_flags.overrides,
)


@dataclass(frozen=True)
class Report:
    """What was found, and what could not be looked at."""

    findings: tuple[Finding, ...]
    left_out: tuple[str, ...]


def lint(pair: Pair) -> Report:
    """Run every check. A clean report says nothing about what is in `left_out`."""
    found = tuple(finding for check in CHECKS for finding in check(pair))
    left = []
    reason = unchecked(pair)
    if pair.kind is None:
        names = ", ".join(pair.drafter.architectures) or "none"
        left.append(f"the drafter's architecture ({names}) is not known here: only flags were checked")
    elif reason:
        left.append(f"the drafter's tensors: {reason}")
    for role, checkpoint in (("target", pair.target), ("drafter", pair.drafter)):
        if checkpoint.tensors is None:
            left.append(f"the {role} has no safetensors file: its tensors were not checked")
    if not pair.flags:
        left.append("no engine flags were given after --")
    return Report(found, tuple(left))
