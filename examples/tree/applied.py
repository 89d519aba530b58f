"""What the engines of a measurement are started with: options of the command line, stock's and the patched worktree."""

from __future__ import annotations

import argparse
from pathlib import Path

PASSED_ON = ("out", "work", "target", "drafters", "prompts", "new_tokens", "requests", "widths", "set")


def engine_options(
    parser: argparse.ArgumentParser, *, entry: str, work: str, limit_s: float, made_up: bool = True
) -> None:
    """Options that `h200.py`, `hybrid.py` and `robust.py` share.

    Args:
        entry, work, limit_s: defaults. made_up: the script makes a target and drafters where none are given.
    """
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--entries", nargs="+", default=[entry], help="what the systems with a tree run")
    parser.add_argument("--patched", type=Path, help="a worktree for them that is taken as it is, no entry applied")
    parser.add_argument("--work", type=Path, default=Path(work), help="worktrees and made-up checkpoints")
    parser.add_argument("--stock", type=Path, help="made with `specpilot stock init`; default: made in --work")
    parser.add_argument("--target", type=Path, required=not made_up)
    parser.add_argument("--drafters", type=Path, required=not made_up, help="folder with dflash2/ and dspark/")
    parser.add_argument(
        "--prompts", type=Path, required=not made_up,
        help="a JSON file of token ids; h200.py and robust.py: or a folder of *.jsonl; hybrid.py: or lists by name",
    )  # fmt: skip
    parser.add_argument("--limit-s", type=float, default=limit_s, help="of a measurement; robust.py: of all three")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=JSON", help="more of SGLang's own settings")
    parser.add_argument("--one", help=argparse.SUPPRESS)


def passed_on(options: argparse.Namespace) -> list[str]:
    """The options that a process of one engine needs."""
    words = []
    for name in PASSED_ON:
        value = getattr(options, name, None)
        if value:
            flag = f"--{name.replace('_', '-')}"
            words += [flag, *map(str, value)] if isinstance(value, list | tuple) else [f"{flag}={value}"]
    return words


def worktrees(options: argparse.Namespace) -> tuple[Path, Path]:
    """Stock, and the tree of systems with a draft tree: --patched, or what --entries give.

    Where none is given they are made, below --work: `stock`, and `tree` of the entries.
    """
    from specpilot_cli.memory.apply import is_there, materialise, plan
    from specpilot_cli.memory.room import open_room
    from specpilot_cli.worktrees.git import tree_id

    stock, ours = options.stock or options.work / "stock", options.patched or options.work / "tree"
    if not stock.exists():
        from specpilot_cli.engine.sglang.source import init_sglang

        init_sglang(stock)
    if options.patched:
        print(f"taken as it is: {ours}, tree {tree_id(ours)}", flush=True)
        return stock, ours
    made = plan(open_room(None), tuple(options.entries), stock)
    if not is_there(made.composition.tree, ours):
        materialise(made, ours)
    names = " ".join(options.entries)
    print(f"applied {names}: tree {made.composition.tree}, as recorded: {made.reproduces}", flush=True)
    return stock, ours
