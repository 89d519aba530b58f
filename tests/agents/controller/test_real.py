"""The controller over the embedded engine, with the real commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from specpilot_cli.agents.controller.client import Controller
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.controller.settings import Design, Settings
from specpilot_cli.artifacts.io import load
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.worktrees import patch

VARY = ("speculative_tree_nodes",)


@pytest.mark.slow
def test_the_tree_entry_is_screened_and_forced(tmp_path: Path) -> None:
    """What the timings say is the machine's affair; what was measured, and its tokens, are not."""
    pytest.importorskip("torch")
    stock = init_stock(tmp_path / "stock", "miniengine")
    delta = (share_dir("memory") / "miniengine" / "tree" / "delta.patch").read_bytes()
    tree = patch.apply(stock.path, stock.tree, delta).tree
    settings = Settings(
        stock=str(stock.path),
        base_tree=stock.tree,
        deployment="miniengine-hybrid__dflash2__cpu__r1",
        design=Design(promote_requests=8, screen_requests=8, noisy=10.0),
    )
    said: list[str] = []
    with Controller.start(tmp_path / "controller", settings) as controller:
        noise = controller.ask(Question(kind="noise"), said.append)
        screen = controller.ask(Question(kind="screen", tree=tree, vary=VARY), said.append)
        forced = controller.ask(Question(kind="force", tree=tree), said.append)
        refused = controller.ask(Question(kind="screen", tree=tree))
        seconds = controller.gpu_seconds
    for reply in (noise, screen):
        if "against other processes for a CPU" in reply.reason:
            pytest.skip(f"This machine is busy: {reply.reason}")
    assert noise.verdict is None and noise.summary["noise"] > 0, noise.reason
    assert screen.verdict in (Verdict.PROMOTED, Verdict.NO_EFFECT, Verdict.UNDERPOWERED), screen.reason
    assert screen.figures is not None and screen.figures.tau_stock and screen.figures.tau_candidate
    assert screen.figures.tau_candidate > screen.figures.tau_stock, "the tree accepts more, on any machine"
    measured = load(str(tmp_path / "controller" / screen.artifacts[0][0])).artifact.body
    assert (measured.stock.tree, measured.candidate.tree) == (stock.tree, tree)
    assert forced.verdict in (Verdict.LOSSLESS, Verdict.UNDERPOWERED), forced.reason
    assert forced.mismatch_rate is not None
    assert refused.verdict is Verdict.NOT_COMPARABLE and VARY[0] in refused.reason
    assert seconds >= noise.seconds + screen.seconds + forced.seconds
    print(noise, screen, forced, refused, seconds, *said, sep="\n")
