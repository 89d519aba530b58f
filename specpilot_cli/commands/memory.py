"""`specpilot memory`: entries that are applied to a fresh stock engine, and kept honest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import ExitCode

if TYPE_CHECKING:
    from specpilot_cli.memory.apply import Plan

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

MemoryDir = Annotated[
    Path | None,
    typer.Option("--memory-dir", help="Another memory room.", show_default="the one shipped with SpecPilot"),
]
Names = Annotated[list[str], typer.Argument(metavar="ENTRY", help="Ids, or ENGINE/ID where two engines have the id.")]


@group.callback()
def memory() -> None:
    """Apply, check and collect memory entries: code deltas that reproduce a measured engine tree exactly."""


@group.command()
def apply(
    entries: Names,
    stock: Annotated[Path | None, typer.Option("--stock", help="Worktree of the unpatched engine.")] = None,
    clone: Annotated[
        Path | None, typer.Option("--clone", help="A clone of SGLang at tag v0.5.20, instead of --stock.")
    ] = None,
    worktree: Annotated[
        Path | None, typer.Option("--worktree", help="Worktree to make.", show_default="STOCK-ENTRY+ENTRY")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option("--variant", metavar="NAME=VALUE", help="Switch of an entry; repeatable.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compose and compare, write nothing.")] = False,
    negative: Annotated[bool, typer.Option("--negative", help="Take entries that lost elsewhere, too.")] = False,
    memory_dir: MemoryDir = None,
    out: Out = None,
) -> None:
    """Apply entries and all they require to a fresh worktree of the stock engine, and compare the tree id.

    From a clone of SGLang the worktree is one of the clone, with the package below python/; the tree id that is
    compared is that of the package.

    Example: specpilot memory apply tree --stock wt/stock --worktree wt/tree
    """
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.memory import apply as domain
    from specpilot_cli.memory.clone import materialise_in_clone
    from specpilot_cli.memory.room import bare

    source, made, tree = _planned(tuple(entries), stock, clone, memory_dir, negative=negative)
    words = domain.switched(made, tuple(variant or ()))
    target = worktree or source.with_name(f"{source.resolve().name}-{'+'.join(sorted({bare(e) for e in entries}))}")
    there = made.reproduces is not False and domain.is_there(tree, target)
    if not dry_run:
        writer = Writer(out, "apply")
        writer.checkpoint(domain.artifact(made, target, complete=False, server_args=words))
    _say_unmeasured(made)
    if dry_run:
        _emit_steps(made)
    else:
        if not there and made.reproduces is not False:
            materialise_in_clone(made, tree, target) if clone else domain.materialise(made, target)
        writer.finish(domain.artifact(made, target, complete=True, server_args=words))
    if made.reproduces is False:
        console.verdict(f"The tree is {made.composition.tree}, recorded is {made.expected}: nothing was made.")
        console.verdict(f"First difference: {made.first_difference}")
        raise typer.Exit(ExitCode.NEGATIVE)
    _say_applied(made, target, "nothing was written" if dry_run else _there(there))
    if words:
        console.say(f"Serve it with: {' '.join(words)}")
    console.say(f"Serve it: PYTHONPATH={target}/python" if clone else f"Next: specpilot pair-run {stock} {target}")


def _planned(
    entries: tuple[str, ...], stock: Path | None, clone: Path | None, memory_dir: Path | None, *, negative: bool
) -> tuple[Path, Plan, str]:
    """Where the stock is, the plan, and the tree that its worktree will have."""
    from specpilot_cli.core.errors import UsageFault
    from specpilot_cli.memory.apply import plan
    from specpilot_cli.memory.clone import plan_on_clone, tree_in_clone
    from specpilot_cli.memory.room import open_room

    if (stock is None) == (clone is None):
        raise UsageFault("Give --stock or --clone.", "One of them says what the entries are applied to.")
    if stock is not None:
        made = plan(open_room(memory_dir), entries, stock, negative=negative)
        return stock, made, made.composition.tree
    assert clone is not None
    made = plan_on_clone(open_room(memory_dir), entries, clone, negative=negative)
    return clone, made, tree_in_clone(made)


def _there(there: bool) -> str:
    return "it was there already, nothing was changed" if there else "made"


def _emit_steps(made: Plan) -> None:
    for step in made.composition.steps:
        entry = step.item.entry
        console.emit("\t".join((entry.id, entry.status, step.applied.tree, " ".join(step.applied.paths))))


def _say_unmeasured(made: Plan) -> None:
    for step in made.composition.steps:
        if step.item.entry.status in ("unmeasured", "negative"):
            console.verdict(f"{step.item.name} is {step.item.entry.status}: no sealed evidence comes with it.")


def _say_applied(made: Plan, target: Path, how: str) -> None:
    tree = made.composition.tree
    if made.reproduces:
        console.verdict(f"{target}: tree {tree}, as recorded ({how}).")
    else:
        console.verdict(f"{target}: tree {tree} ({how}). No entry records this combination; each reproduces by itself.")


@group.command()
def check(
    entries: Annotated[list[str] | None, typer.Argument(metavar="ENTRY", help="All where none is named.")] = None,
    stock: Annotated[
        Path | None, typer.Option("--stock", help="Stock to check on.", show_default="the engine's own, in the cache")
    ] = None,
    contracts: Annotated[
        bool, typer.Option("--contracts", help="Run the contracts too: code of the entries, with your rights.")
    ] = False,
    allowed_signers: Annotated[
        Path | None,
        typer.Option("--allowed-signers", help="Trusted keys (ssh format).", show_default="the controller's"),
    ] = None,
    memory_dir: MemoryDir = None,
) -> None:
    """Check files, digests, requirements, seals and index of the entries, and that each gives the tree it records.

    Example: specpilot memory check
    """
    from specpilot_cli.commands._memory_seals import seal_fault
    from specpilot_cli.memory.check import Checker
    from specpilot_cli.memory.room import bare, open_room

    room = open_room(memory_dir)
    folders = [room.root / room.engine_of((e,)) / bare(e) for e in entries or ()] or list(room.folders())
    bad = 0
    with Checker(room, stock, seal_fault=seal_fault(allowed_signers), run_contracts=contracts) as checker:
        for fault in () if entries else checker.room_faults():
            bad += 1
            console.emit(f"FAIL\t{fault}")
        for folder in folders:
            finding = checker.check(folder)
            bad += bool(finding.faults)
            for fault in finding.faults:
                console.emit(f"FAIL\t{finding.name}\t{fault}")
            if not finding.faults:
                console.emit(f"ok\t{finding.name}\t{finding.tree}")
    console.verdict(f"{len(folders)} entries checked in {room.root}, {bad or 'no'} fault{'s' if bad != 1 else ''}.")
    raise typer.Exit(ExitCode.NEGATIVE if bad else ExitCode.OK)


@group.command("list")
def list_(memory_dir: MemoryDir = None) -> None:
    """List the entries: name, status, kind, title, separated by tabs.

    Example: specpilot memory list | cut -f1
    """
    from specpilot_cli.memory.entry import load_entry
    from specpilot_cli.memory.room import open_room

    for folder in open_room(memory_dir).folders():
        item = load_entry(folder)
        console.emit("\t".join((item.name, item.entry.status, item.entry.kind, item.entry.title)))


@group.command()
def show(entry: Annotated[str, typer.Argument(metavar="ENTRY")], memory_dir: MemoryDir = None) -> None:
    """Print an entry's declaration, its switches and its limits.

    Example: specpilot memory show tree
    """
    from specpilot_cli.memory.entry import MAX_TOML_BYTES, read_file
    from specpilot_cli.memory.room import bare, open_room
    from specpilot_cli.memory.variants import load_variants

    room = open_room(memory_dir)
    item = room.load(room.engine_of((entry,)), bare(entry))
    limits = read_file(item.folder / "LIMITS.md", MAX_TOML_BYTES).decode(errors="replace")
    console.emit(item.toml.decode().rstrip("\n"))
    if load_variants(item.folder) is not None:
        console.emit("\n" + (item.folder / "variants.toml").read_text(encoding="utf-8").rstrip("\n"))
    console.emit("\n" + limits.rstrip("\n"))


@group.command()
def index(memory_dir: MemoryDir = None) -> None:
    """Rewrite index.json from the entries, and print its path.

    Example: specpilot memory index
    """
    from specpilot_cli.memory import index as domain
    from specpilot_cli.memory.room import open_own_room

    console.emit(str(domain.write(open_own_room(memory_dir))))


@group.command()
def add(
    worktree: Annotated[Path, typer.Option("--from", help="Worktree that holds the change.")],
    id_: Annotated[str, typer.Option("--id", help="Lower case, digits, hyphens.")],
    title: Annotated[str, typer.Option("--title", help="One line for people.")],
    kind: Annotated[str, typer.Option("--kind", help="format, tree, verify, batching, kernel or engine.")],
    vary: Annotated[list[str] | None, typer.Option("--vary", help="Configuration key it adds or changes.")] = None,
    requires: Annotated[
        list[str] | None, typer.Option("--requires", help="Entry that it builds on; auto: those found in it.")
    ] = None,
    conflicts: Annotated[list[str] | None, typer.Option("--conflicts", help="Entry it cannot go with.")] = None,
    source: Annotated[str | None, typer.Option("--source", help="Where the idea is from.")] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", help="Engine it is for.", show_default="by the stock's tree id")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="Path it may touch, * for any characters.")] = None,
    evidence: Annotated[
        list[Path] | None, typer.Option("--evidence", help="Seal of this tree, and each file that it names.")
    ] = None,
    memory_dir: MemoryDir = None,
) -> None:
    """Keep what a worktree changes on stock as an entry, if applying it anew gives the same tree.

    Example: specpilot memory add --from wt/tree --id tree --title "Draft trees" --kind tree --vary tree_nodes
    """
    from specpilot_cli.commands._memory_seals import seal_fault
    from specpilot_cli.memory.add import Draft
    from specpilot_cli.memory.add import add as keep
    from specpilot_cli.memory.room import open_own_room

    files = tuple(evidence or ())
    draft = Draft(
        id_,
        title,
        kind,
        engine,
        vary=tuple(vary or ()),
        requires=tuple(requires or ()),
        conflicts=tuple(conflicts or ()),
        source=source,
        only=tuple(only or ()),
        evidence=files,
    )
    item = keep(open_own_room(memory_dir), worktree, draft, seal_fault(None) if files else None)
    for path in item.entry.delta.paths:
        console.say(f"  {path}")
    console.verdict(
        f"{item.name}: {len(item.entry.delta.paths)} paths, tree {item.entry.reproduces.tree}, {item.entry.status}."
    )
    console.say(f"Next: write {item.folder / 'LIMITS.md'}, then specpilot memory index")
    console.emit(str(item.folder))


@group.command()
def select(
    deployment: Annotated[str, typer.Option("--deployment", help="Id or .toml file.")],
    ceiling: Annotated[str, typer.Option("--ceiling", help="Ceiling artifact of the deployment.")],
    memory_dir: MemoryDir = None,
) -> None:
    """Rank the entries by what a ceiling says they can be worth; those left out follow with the reason.

    Each line: `take` or `leave`, entry, worth (ratio, an upper bound; `-` where left out), why.

    Example: specpilot memory select --deployment profiles/d.toml --ceiling ceiling.json
    """
    from specpilot_cli.artifacts.io import load
    from specpilot_cli.core.errors import InputUnusable
    from specpilot_cli.deployment.load import load_deployment
    from specpilot_cli.memory.entry import load_entry
    from specpilot_cli.memory.room import open_room
    from specpilot_cli.memory.select import select as rank

    record = load_deployment(deployment).record
    body = load(ceiling, "ceiling").artifact.body
    if body.deployment_id != record.id:
        raise InputUnusable(f"{ceiling}: is the ceiling of {body.deployment_id}.", f"The deployment is {record.id}.")
    taken, left = rank([load_entry(folder) for folder in open_room(memory_dir).folders()], record, body)
    for candidate in taken:
        console.emit("\t".join(("take", candidate.item.name, f"{candidate.worth:.3f}", candidate.why)))
    for out in left:
        console.emit("\t".join(("leave", out.item.name, "-", out.why)))
    console.verdict(f"{len(taken)} to try at {record.id}, {len(left)} left out. The ceiling's target: {body.target}.")


@group.command()
def rebase(
    entry: Annotated[str, typer.Argument(metavar="ENTRY")],
    onto: Annotated[Path, typer.Option("--onto", help="Worktree of the other stock.")],
    worktree: Annotated[Path, typer.Option("--worktree", help="Worktree to make.")],
    stock: Annotated[
        Path | None, typer.Option("--stock", help="The entry's own stock.", show_default="the engine's, in the cache")
    ] = None,
    memory_dir: MemoryDir = None,
) -> None:
    """Merge an entry and all it requires into another stock, in a worktree where a person resolves the conflicts.

    Each line: `conflict` or `merged`, path. Exit 1 where there is a conflict.

    Example: specpilot memory rebase tree --onto wt/newer --worktree wt/tree-newer
    """
    from specpilot_cli.engine.stock import stock_repository
    from specpilot_cli.memory.rebase import rebase as merge
    from specpilot_cli.memory.room import open_room

    room = open_room(memory_dir)
    made = merge(room, entry, stock or stock_repository(room.engine_of((entry,))).path, onto, worktree)
    for path in made.merged:
        console.emit(f"{'conflict' if path in made.conflicts else 'merged'}\t{path}")
    console.verdict(f"{worktree}: {len(made.merged)} files differ from its stock, {len(made.conflicts)} in conflict.")
    console.say(f"Next: resolve, test, then specpilot memory add --from {worktree}")
    raise typer.Exit(ExitCode.NEGATIVE if made.conflicts else ExitCode.OK)


@group.command()
def guard(entry: Annotated[str, typer.Argument(metavar="ENTRY")], memory_dir: MemoryDir = None) -> None:
    """Print a Python module for the patched tree that keeps the mechanism off outside the entry's validity region.

    Example: specpilot memory guard tree > wt/tree/miniengine/tree_region.py
    """
    from specpilot_cli.memory.guard import render
    from specpilot_cli.memory.room import bare, open_room

    room = open_room(memory_dir)
    console.emit(render(room.load(room.engine_of((entry,)), bare(entry)).entry).rstrip("\n"))


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="memory")
