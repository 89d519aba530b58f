"""Reads the Chrome trace of a CPU engine (torch.profiler): time and work of each top-level operator, by scope."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from specpilot_cli.core.errors import ExternalFailed

PHASE, CLASS = "phase:", "class:"
ITEM_BYTES = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "int": 4, "bool": 1}
PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}


@dataclass
class Operator:
    """A top-level operator call: everything below it is included."""

    name: str
    phase: str
    scope: str
    """Innermost `class:` scope around it; empty where there is none."""
    time_ms: float
    flop: float
    bytes: float
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class _Event:
    name: str
    start: float
    end: float
    thread: object
    args: dict[str, Any]
    annotation: bool


_KINDS = ("cpu_op", "user_annotation")


def _event(raw: dict[str, Any]) -> _Event:
    start, length = float(raw["ts"]), float(raw["dur"])
    return _Event(
        raw["name"], start, start + length, raw.get("tid"), raw.get("args", {}), raw["cat"] == "user_annotation"
    )


def read_events(path: Path) -> list[_Event]:
    """Operators and annotations of a trace, sorted so that an outer event comes before what it contains.

    Raises:
        ExternalFailed: the profiler wrote something that is not a trace.
    """
    try:
        data = path.read_bytes()
        document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
        events = [_event(e) for e in document["traceEvents"] if e.get("ph") == "X" and e.get("cat") in _KINDS]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ExternalFailed(f"{path}: not a profiler trace.", str(error)) from None
    return sorted(events, key=lambda e: (str(e.thread), e.start, -e.end))


def operators(events: Sequence[_Event]) -> Iterator[Operator]:
    """Top-level operators inside a `phase:` annotation, each with the work of the leaves below it."""
    stack: list[_Event] = []
    current: Operator | None = None
    for event in events:
        while stack and (stack[-1].end <= event.start or stack[-1].thread != event.thread):
            stack.pop()
        inside = any(not outer.annotation for outer in stack)
        if not event.annotation and not inside:
            if current is not None:
                yield current
            current = _start(event, stack)
        elif not event.annotation and current is not None and event.name in PRODUCTS and not _within_product(stack):
            flop, moved = product_work(event.args)
            current.flop, current.bytes = current.flop + flop, current.bytes + moved
        stack.append(event)
    if current is not None:
        yield current


def _within_product(stack: Sequence[_Event]) -> bool:
    return any(outer.name in PRODUCTS for outer in stack)


def _start(event: _Event, stack: Sequence[_Event]) -> Operator | None:
    phases = [e.name[len(PHASE) :] for e in stack if e.annotation and e.name.startswith(PHASE)]
    if not phases:
        return None
    scopes = [e.name[len(CLASS) :] for e in stack if e.annotation and e.name.startswith(CLASS)]
    flop, moved = product_work(event.args) if event.name in PRODUCTS else (0.0, 0.0)
    return Operator(
        event.name, phases[-1], scopes[-1] if scopes else "", (event.end - event.start) / 1e3, flop, moved,
        _shapes(event.args),
    )  # fmt: skip


def _shapes(args: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    found = []
    for dims in args.get("Input Dims", []):
        nested = dims if dims and isinstance(dims[0], list) else [dims]
        found += [tuple(int(n) for n in d) for d in nested if d]
    return tuple(found)


def _item_bytes(args: dict[str, Any]) -> int:
    kinds = [ITEM_BYTES[t] for t in args.get("Input type", []) if t in ITEM_BYTES]
    return max(kinds, default=4)


def product_work(args: dict[str, Any]) -> tuple[float, float]:
    """(FLOP, bytes) of a matrix product from its recorded shapes: 2·M·N·K, and both operands and the result once."""
    matrices = [s for s in _shapes(args) if len(s) in (2, 3)][-2:]
    if len(matrices) != 2:
        return 0.0, 0.0
    left, right = matrices
    result = prod(left[:-1]) * right[-1]
    return 2.0 * result * left[-1], float(prod(left) + prod(right) + result) * _item_bytes(args)


COPIES = {"aten::copy_", "aten::clone", "aten::contiguous", "aten::to", "aten::_to_copy"}
JOINS = {"aten::cat", "aten::stack"}
GATHERS = {"aten::embedding", "aten::index_select"}
SELECTIONS = {"aten::gather", "aten::take_along_dim", "aten::index_put_", "aten::scatter_"}
UNRECORDED = {"aten::index"}
"""Their index tensors are not in the trace, so what they move is not known."""


def moved_bytes(operator: Operator, item_bytes: int = 4) -> float:
    """Bytes that an operator without matrix products must move, from the shapes of its inputs.

    Copies read and write once; joins read every part and write the whole; gathers read and write the rows that the
    indices name, not the table; selections move as many items as their last input has; anything else reads its inputs
    and writes a result as large as the largest. 0 where the trace does not say.
    """
    sizes = [prod(shape) for shape in operator.shapes]
    if not sizes or operator.name in UNRECORDED:
        return 0.0
    if operator.name in COPIES:
        items = 2 * max(sizes)
    elif operator.name in JOINS:
        items = 2 * sum(sizes)
    elif operator.name in GATHERS:
        items = 2 * sizes[-1] * operator.shapes[0][-1]
    elif operator.name in SELECTIONS:
        items = 2 * sizes[-1]
    else:
        items = sum(sizes) + max(sizes)
    return float(items) * item_bytes
