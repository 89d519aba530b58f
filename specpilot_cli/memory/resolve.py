"""From the entries asked for to the list to apply: requirements first, ties by id, conflicts and cycles refused."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from specpilot_cli.core.errors import InputUnusable, SpecPilotError, UsageFault
from specpilot_cli.memory.entry import MAX_REQUIRES, EntryFolder

Load = Callable[[str], EntryFolder]


def resolve(names: Sequence[str], load: Load) -> tuple[EntryFolder, ...]:
    """The entries named and all they require, in the order to apply them: the same for every order of `names`.

    Raises:
        UsageFault: two of them conflict (the chain of requirements that brought them in is said), or an unknown name.
        InputUnusable: a requirement that does not exist, a cycle, or more than 12 requirements.
    """
    found, brought_by = _closure(names, load)
    _refuse_conflicts(found, brought_by)
    order = _topological({name: item.entry.requires for name, item in found.items()})
    return tuple(found[name] for name in order)


def closure(name: str, load: Load) -> tuple[EntryFolder, ...]:
    """One entry after everything that it requires.

    Raises:
        As `resolve`.
    """
    ordered = resolve([name], load)
    if len(ordered) > MAX_REQUIRES + 1:
        raise InputUnusable(f"{name}: requires {len(ordered) - 1} entries.", f"The limit is {MAX_REQUIRES}.")
    return ordered


def needed_by(name: str, names: Sequence[str], load: Load) -> str:
    """The chain that brings `name` in where `names` are asked for, such as `a needs b, b needs c`; empty for one of
    `names`."""
    return _chain(name, _closure(names, load)[1])


def _closure(names: Iterable[str], load: Load) -> tuple[dict[str, EntryFolder], dict[str, str]]:
    found: dict[str, EntryFolder] = {}
    brought_by: dict[str, str] = {}
    pending = [(name, "") for name in sorted(set(names))]
    while pending:
        name, by = pending.pop()
        if name in found:
            continue
        try:
            found[name] = load(name)
        except UsageFault as error:
            if not by:
                raise
            raise InputUnusable(f"{by} requires {name}.", error.fact, "See: specpilot memory check") from None
        brought_by[name] = by
        pending += [(needed, name) for needed in found[name].entry.requires]
    return found, brought_by


def _refuse_conflicts(found: Mapping[str, EntryFolder], brought_by: Mapping[str, str]) -> None:
    for name in sorted(found):
        for other in sorted(set(found[name].entry.conflicts) & set(found)):
            chains = [_chain(side, brought_by) for side in (name, other)]
            why = "; ".join(chain for chain in chains if chain)
            raise UsageFault(f"{name} conflicts with {other}.", why, "Apply them to worktrees of their own.")


def _chain(name: str, brought_by: Mapping[str, str]) -> str:
    links = []
    while by := brought_by[name]:
        links.append(f"{by} needs {name}")
        name = by
    return ", ".join(reversed(links))


def _topological(requires: Mapping[str, Sequence[str]]) -> list[str]:
    """Kahn's algorithm; a heap makes the smallest id of those that are ready the next."""
    waiting = {name: set(needed) for name, needed in requires.items()}
    dependents: dict[str, list[str]] = {name: [] for name in requires}
    for name, needed in waiting.items():
        for other in needed:
            dependents[other].append(name)
    ready = [name for name, needed in waiting.items() if not needed]
    heapq.heapify(ready)
    order = []
    while ready:
        name = heapq.heappop(ready)
        order.append(name)
        for dependent in dependents[name]:
            waiting[dependent].discard(name)
            if not waiting[dependent]:
                heapq.heappush(ready, dependent)
    if len(order) < len(waiting):
        raise _cycle({name: needed for name, needed in waiting.items() if name not in order})
    return order


def _cycle(waiting: Mapping[str, set[str]]) -> SpecPilotError:
    name = min(waiting)
    seen: list[str] = []
    while name not in seen:
        seen.append(name)
        name = min(waiting[name])
    loop = [*seen[seen.index(name) :], name]
    return InputUnusable("The requirements go round in a circle.", " needs ".join(loop), "Correct an entry.toml.")
