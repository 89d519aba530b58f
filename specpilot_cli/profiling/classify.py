"""Operator → kernel class."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from specpilot_cli.artifacts.profile import KernelClass
from specpilot_cli.profiling.trace import UNRECORDED, Operator, moved_bytes

GEMM = {"aten::linear", "aten::mm", "aten::addmm"}
MEMORY = frozenset(
    "aten::" + name
    for name in (
        "cat copy_ clone contiguous index index_put_ gather index_select embedding to _to_copy stack scatter_ "
        "take_along_dim"
    ).split()
)
"""Operators that move data."""
FREE = frozenset(
    "aten::" + name
    for name in (
        "view reshape transpose t unsqueeze squeeze expand slice select flatten unflatten split split_with_sizes chunk "
        "permute unfold mT detach item _local_scalar_dense lift_fresh detach_ empty resolve_conj resolve_neg "
        "zeros ones full arange new_zeros new_full"
    ).split()
)
"""Views and bookkeeping: their time counts, but they need not move a byte."""


def classify(operator: Operator, vocab_size: int) -> str:
    """gemm, lm_head, attention, recurrent, elementwise, memory or other.

    Weight products come first (a mixer's projections are GEMMs wherever they stand), then the engine's own `class:`
    scope, then the operator's name.
    """
    if operator.name in GEMM:
        return "lm_head" if any(vocab_size in shape for shape in operator.shapes) else "gemm"
    if operator.name == "aten::scaled_dot_product_attention":
        return "attention"
    if operator.scope:
        return operator.scope
    if operator.name in MEMORY - UNRECORDED:
        return "memory"
    return "other" if operator.name in FREE | UNRECORDED else "elementwise"


def kernel_classes(
    found: Iterable[Operator], *, steps: int, inflation: float, vocab_size: int
) -> tuple[KernelClass, ...]:
    """Sum operators into classes, per step; times divided by the profiler's inflation.

    `other` holds what has no known work, so that its floor is its own time.
    """
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0, 0.0])
    for operator in found:
        name = classify(operator, vocab_size)
        entry = sums[operator.phase, name]
        work = operator.bytes or (0.0 if operator.name in FREE else moved_bytes(operator))
        for index, value in enumerate((operator.time_ms / inflation, 1.0, operator.flop, work)):
            entry[index] += value
    return tuple(
        KernelClass(phase=phase, name=name, time_ms=t / steps, calls=c / steps, flop=f / steps, bytes=b / steps)
        for (phase, name), (t, c, f, b) in sorted(sums.items())
        if phase in ("draft", "verify", "accept", "commit")
    )
