"""`memory apply`: from names to a worktree that holds exactly the recorded tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.artifacts.apply import AppliedEntry, ApplyArtifact, ApplyBody
from specpilot_cli.artifacts.base import envelope_fields
from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.memory.compose import Composer, Composition, EntryRefused, difference
from specpilot_cli.memory.entry import EntryFolder
from specpilot_cli.memory.moved import moved_files
from specpilot_cli.memory.resolve import closure, needed_by, resolve
from specpilot_cli.memory.room import Room, bare
from specpilot_cli.memory.select import said
from specpilot_cli.memory.variants import load_variants, server_words
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import base_commit, commit_tree, head_commit, tree_id, tree_of, worktree_root


@dataclass(frozen=True)
class Plan:
    """Everything known before a file is written."""

    stock: Path
    engine: str
    composition: Composition
    expected: str | None
    """The recorded tree; None for a combination that no entry records."""
    first_difference: str | None

    @property
    def reproduces(self) -> bool | None:
        """Whether the composition is the recorded tree; None where none is recorded."""
        return None if self.expected is None else self.composition.tree == self.expected


def plan(room: Room, names: tuple[str, ...], stock: Path, *, negative: bool = False) -> Plan:
    """Resolve and compose `names` on the stock worktree, in its object store only.

    Args:
        negative: take entries with status `negative` too, to try them at another place.
    Raises:
        EntryRefused: other base than the stock, a delta that was changed or does not apply, or an entry that by itself
            does not reproduce. UsageFault: unknown, conflicting, retired or negative entries.
        InputUnusable: a damaged entry. EnvironmentUnusable: `stock` is not a clean worktree.
    """
    return plan_on(room, names, stock, tree_id(stock), negative=negative)


def plan_on(room: Room, names: tuple[str, ...], stock: Path, base: str, *, negative: bool = False) -> Plan:
    """As `plan`, on tree `base` of the repository at `stock`. Raises what `plan` raises for entries."""
    engine = room.engine_of(names, base)
    load = room.loader(engine)
    asked = [bare(name) for name in names]
    order = resolve(asked, load)
    for item in order:
        _require_live(item, needed_by(item.entry.id, asked, load), negative=negative)
        if item.entry.base.tree != base:
            raise _other_base(item, order, stock, base, needed_by(item.entry.id, asked, load))
    with Composer(stock) as composer:
        whole = composer.compose(base, order)
        top = next((item for item in order if len(closure(item.entry.id, load)) == len(order)), None)
        if top is not None:
            expected = top.entry.reproduces.tree
            return Plan(stock, engine, whole, expected, difference(stock, whole, expected))
        for name in names:
            _require_reproduces(composer, base, closure(bare(name), load))
        return Plan(stock, engine, whole, None, None)


def _require_live(item: EntryFolder, chain: str, *, negative: bool) -> None:
    because = f" ({chain})" if chain else ""
    if item.entry.status == "retired":
        gone = item.entry.retraction
        why = gone.why if gone else f"See {item.folder / 'LIMITS.md'}."
        raise UsageFault(
            f"{item.name} is retired{because}.", why, f"Use {gone.instead}." if gone and gone.instead else ""
        )
    if item.entry.status == "negative" and not negative:
        raise UsageFault(
            f"{item.name} was tried and lost{because}.", "; ".join(said(item.entry)), "To try it here: --negative"
        )


def _other_base(item: EntryFolder, order: Sequence[EntryFolder], stock: Path, base: str, chain: str) -> EntryRefused:
    reason = f"It is for stock tree {item.entry.base.tree}; {stock} is tree {base}."
    reason += f" {chain}." if chain else ""
    moved = moved_files(stock, base, order)
    if moved is None:
        reason += " Which of its files differ cannot be told."
    else:
        reason += f" Touched files that differ: {', '.join(moved) or 'none'}."
    return EntryRefused(f"{item.name} does not apply here.", reason, "Use its own stock, or: specpilot memory rebase")


def _require_reproduces(composer: Composer, base: str, own: Sequence[EntryFolder]) -> None:
    recorded = own[-1].entry.reproduces.tree
    path = difference(composer.repository, composer.compose(base, own), recorded)
    if path is not None:
        raise EntryRefused(f"{own[-1].name} does not reproduce tree {recorded}.", f"First difference: {path}")


def is_there(tree: str, target: Path) -> bool:
    """Whether `target` holds the tree already.

    Raises:
        EnvironmentUnusable: it is something else.
    """
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return False
    if target.is_dir() and tree_id(worktree_root(target)) == tree:
        return True
    raise EnvironmentUnusable(f"{target}: is there already and is not tree {tree}.", "", "Name another, or remove it.")


def materialise(made: Plan, target: Path) -> None:
    """Put the plan's tree into a new worktree at `target`, committed on stock with a fixed author and date.

    Raises:
        EnvironmentUnusable: `target` is taken.
    """
    parent = _stock_commit(made.stock, made.composition.base)
    checkout.add(made.stock, commit_tree(made.stock, made.composition.tree, message(made), [parent]), target)


def message(made: Plan) -> str:
    """Of the commit that a plan becomes."""
    ids = [step.item.entry.id for step in made.composition.steps]
    return f"Apply {', '.join(ids)}\n\nEngine: {made.engine}\nBase-Tree: {made.composition.base}\n"


def _stock_commit(stock: Path, base: str) -> str:
    for commit in (base_commit(stock), head_commit(stock)):
        if tree_of(stock, commit) == base:
            return commit
    raise EnvironmentUnusable(f"{stock}: its files are no commit of its own.", "", "Commit them, or make a new stock.")


def switched(made: Plan, variants: Sequence[str]) -> tuple[str, ...]:
    """Server words for `name=value` choices among the variants of the plan's entries.

    Raises:
        UsageFault: an unknown name or a value out of range. InputUnusable: a damaged variants.toml.
    """
    found = [load_variants(step.item.folder) for step in made.composition.steps]
    return server_words([registry for registry in found if registry is not None], variants)


def artifact(made: Plan, target: Path, *, complete: bool, server_args: tuple[str, ...] = ()) -> ApplyArtifact:
    """`specpilot.apply/1` of a plan; complete once the worktree is there, or none will be made."""
    steps = made.composition.steps
    entries = tuple(
        AppliedEntry(
            id=step.item.entry.id,
            status=step.item.entry.status,
            delta_sha256=step.item.entry.delta.sha256,
            paths=step.applied.paths,
            vary=step.item.entry.delta.vary,
        )
        for step in steps
    )
    body = ApplyBody(
        engine=made.engine,
        base_tree=made.composition.base,
        entries=entries,
        tree=made.composition.tree,
        expected_tree=made.expected,
        reproduces=made.reproduces,
        first_difference=made.first_difference,
        worktree=str(target),
        server_args=server_args,
    )
    inputs = tuple(source for step in steps for source in step.item.sources())
    return ApplyArtifact(**envelope_fields(inputs=inputs, complete=complete), body=body)
