"""Stock and patched worktrees of a measurement."""

from __future__ import annotations

from pathlib import Path


def worktrees(entry: str, stock: Path | None, work: Path) -> tuple[Path, Path]:
    """Stock (made below `work` where none is given) and the tree that the entry gives (`work/tree`)."""
    from specpilot_cli.memory.apply import materialise, plan
    from specpilot_cli.memory.room import open_room

    stock, ours = stock or work / "stock", work / "tree"
    if not stock.exists():
        from specpilot_cli.engine.sglang.source import init_sglang

        init_sglang(stock)
    made = plan(open_room(None), (entry,), stock)
    if not ours.exists():
        materialise(made, ours)
    print(f"applied {entry}: tree {made.composition.tree}, as recorded: {made.reproduces}", flush=True)
    return stock, ours
