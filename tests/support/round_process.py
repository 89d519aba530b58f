"""A round as a process of its own: real worktrees, tools and journal, the real SDK, and a gate that measures nothing.

    python -m support.round_process FOLDER STOCK MEMORY URL LOG SECONDS

Prints the promoted tree and what was spent as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support import samples
from support.fake_gate import FakeGate
from support.messages_server import KEY

from specpilot_cli.agents.provider import Provider, Usage
from specpilot_cli.agents.providers.detached import Detached
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.agents.round import Order, run
from specpilot_cli.agents.shell import Runner
from specpilot_cli.artifacts.ceiling import CeilingBody
from specpilot_cli.artifacts.round import BudgetLimits, RoundBody, RoundSettings
from specpilot_cli.memory.room import Room
from specpilot_cli.worktrees.git import tree_id

ROUND_ID = "0123456789ab"


def ceiling() -> CeilingBody:
    """A ceiling with room for everything that the scripted agents assume."""
    from specpilot_cli.artifacts.ceiling import FloorSettings
    from specpilot_cli.artifacts.profile import Acceptance, KernelClass
    from specpilot_cli.costmodel.ceiling import compute

    names = [("verify", "gemm", 0.9), ("verify", "elementwise", 0.4), ("commit", "gemm", 0.05), ("draft", "gemm", 0.2)]
    names += [
        ("draft", "elementwise", 0.2),
        ("draft", "attention", 0.1),
        ("draft", "memory", 0.04),
        ("verify", "memory", 0.02),
    ]
    classes = tuple(
        KernelClass(phase=phase, name=name, time_ms=ms, calls=1, flop=0, bytes=ms / 8 * 0.9e6)
        for phase, name, ms in names
    )
    acceptance = Acceptance(
        tau=2.4, verify_steps=100, correct_drafts=140, completion_tokens=240, position_rate=(0.6, 0.4),
        oracle_tau=4.0, oracle_chain_tau=2.4, oracle_steps=100, candidates=16,
    )  # fmt: skip
    body, _ = compute(samples.profile_body(classes=classes, acceptance=acceptance), FloorSettings())
    return body


def provider(url: str) -> Detached:
    """The SDK, in its courier, against a loopback server, with short pauses."""
    return Detached(Secret(KEY), model="scripted", base_url=url, round_id=ROUND_ID, max_retries=4, backoff_s=0.01)


def cost(model: str, usage: Usage) -> float | None:
    """A price, so that money can be limited."""
    return sum(usage.model_dump().values()) / 1e6


def nothing(*_: Any) -> None:
    """Says and checks nothing."""


def order(
    folder: Path,
    stock: Path,
    memory: Path,
    model: Provider,
    log: Path,
    *,
    seconds: float = 0.0,
    limits: BudgetLimits | None = None,
    stop: Callable[[], None] = nothing,
    save: Callable[[RoundBody, bool], None] = nothing,
    tell: Callable[[str, str], None] = nothing,
    **settings: Any,
) -> Order:
    """A round with the fake gate."""
    fields = {"deployment": "mini", "stock": str(stock), "provider": "anthropic", "model": "scripted"}
    made = RoundSettings.model_validate({**fields, "memory_dir": str(memory), "devices": ("cpu",), **settings})
    gate = FakeGate(stock, log, seconds)
    return Order(
        folder=folder,
        round_id=ROUND_ID,
        stock=stock,
        stock_tree=tree_id(stock),
        engine="miniengine",
        ceiling=ceiling(),
        ceiling_sha256="0" * 64,
        settings=made,
        limits=limits or BudgetLimits(),
        room=Room(memory),
        candidates=(),
        left_out=(),
        history=(),
        provider=model,
        paid=True,
        cost=cost,
        gates=dict.fromkeys(made.devices, gate),
        runner=Runner(),
        evidence=folder / "controller",
        seal_fault=lambda path: None,
        tell=tell,
        stop=stop,
        save=save,
    )


def main() -> None:
    """Run, and say what came of it."""
    folder, stock, memory, url, log, seconds = sys.argv[1:]
    paths = (Path(folder), Path(stock), Path(memory))
    body = run(order(*paths, provider(url), Path(log), seconds=float(seconds)))
    results = {record.proposal.id: record.result for record in body.directions}
    entries = [entry.model_dump() for entry in body.entries]
    print(
        json.dumps({"tree": body.final_tree, "results": results, "entries": entries, "spent": body.spent.model_dump()})
    )


if __name__ == "__main__":
    main()
