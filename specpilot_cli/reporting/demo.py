"""The demo: the whole loop on the embedded engine, one real command after the other."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.io import load
from specpilot_cli.core import console
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.engine.miniengine.adapter import HERE
from specpilot_cli.worktrees import checkout, git, patch

ENTRY = "tree"
VARY = "speculative_tree_nodes"
REQUESTS = ("--requests", "28")
"""A B B A on 28 requests. On 41 requests once a side, in the same time, the noise was twice as large (2.5 to 5.5 %
against 1.4), and the bar takes it twice."""
NOISY_DESIGN = ("--repeats", "2")
NOISY = 0.045
"""Noise from which the demo takes that design. The tree's gain is about 1.16 with an interval of 4 % either way, and
its lower bound has to exceed 1.01 + 2 noise."""
FAULT = HERE / "faults" / "bias7.patch"


@dataclass
class Demo:
    """Runs commands in `folder` and remembers what the summary needs."""

    folder: Path
    command: tuple[str, ...] = (sys.executable, "-m", "specpilot_cli")
    seconds: float = 0.0
    design: tuple[str, ...] = ()
    noise: str = "noise.json"
    summary: list[tuple[str, str]] = field(default_factory=list)

    def run(self, why: str, *args: str, expect: Sequence[ExitCode] = (ExitCode.OK,)) -> ExitCode:
        """Show the command as a user would type it, run it, and stop the demo where its verdict is another one.

        Raises:
            ExternalFailed: another exit code than expected.
        """
        console.verdict(f"\n# {why}\n$ specpilot {shlex.join(args)}")
        started = time.monotonic()
        done = subprocess.run([*self.command, *args], cwd=self.folder, stdout=subprocess.DEVNULL, check=False)
        self.seconds += time.monotonic() - started
        if done.returncode not in expect:
            raise ExternalFailed(
                f"The demo stopped: `specpilot {args[0]}` ended with exit code {done.returncode}.",
                "A busy machine gives UNDERPOWERED (125) or INFRA (5): that is a verdict, not a fault.",
                f"Look at {self.folder}, quieten the machine, and run the demo again.",
            )
        return ExitCode(done.returncode)

    def body(self, name: str) -> Any:
        """Body of an artifact that a step wrote."""
        return load(str(self.folder / name)).artifact.body

    def note(self, what: str, figure: str) -> None:
        """A line of the summary."""
        self.summary.append((what, figure))


def _measure(demo: Demo) -> None:
    demo.run("Stock: the embedded engine as a git repository; its tree id is its identity.", "stock", "init", "stock")
    demo.run("Where does a step's time go?", "profile", "stock", "--requests", "4", "-o", "profile.json")
    demo.run("How fast could it be, and what holds it back?", "ceiling", "profile.json", "-o", "ceiling.json")
    profile, ceiling = demo.body("profile.json"), demo.body("ceiling.json")
    demo.note("stock against AR", f"{profile.speedup_over_ar:.2f}×, accept length τ {profile.acceptance.tau:.2f}")
    demo.note("ceiling", f"{ceiling.ceiling:.2f}× stock; largest factor: {ceiling.target}")


def _improve(demo: Demo) -> None:
    demo.run(
        "A memory entry on stock: verify a best-first tree instead of one chain.",
        "memory", "apply", ENTRY, "--stock", "stock", "--worktree", "tree", "-o", "apply.json",
    )  # fmt: skip
    demo.run(
        "How far apart do two identical systems measure on this machine?",
        "pair-run", "stock", "--noise", *REQUESTS, *demo.design, "-o", demo.noise,
    )  # fmt: skip
    if demo.body(demo.noise).noise > NOISY:  # decided before anything of the candidate is measured
        demo.design, demo.noise = NOISY_DESIGN, "noise-2.json"
        demo.run(
            "Too far for the gain that is expected: this machine is noisy, so all of it is measured twice.",
            "pair-run", "stock", "--noise", *REQUESTS, *demo.design, "-o", demo.noise,
        )  # fmt: skip


def _seal(demo: Demo) -> None:
    for number in ("1", "2"):
        demo.run(
            f"Is the tree faster? On requests that nothing has read yet, interleaved: run {number} of 2.",
            "pair-run", "stock", "tree", "--split", "sealed", *REQUESTS, *demo.design, "--seed", number,
            "--vary", VARY, "--noise-from", demo.noise, "-o", f"final-{number}.json",
        )  # fmt: skip
        demo.run(
            "Every token of it against the stock target's own choice.",
            "force-tokens", f"final-{number}.json", "--scorer", "stock", "-o", f"forced-{number}.json",
        )  # fmt: skip
    evidence = ("final-1.json", "final-2.json", "forced-1.json", "forced-2.json", demo.noise)
    demo.run(
        "What passed is sealed: a signed statement over these files.",
        "seal", "make", *evidence, "--seen", "profile.json", "-o", "seal.json",
    )  # fmt: skip
    demo.run("Anyone can check it.", "seal", "verify", "seal.json")
    for number in ("1", "2"):
        pair = demo.body(f"final-{number}.json")
        gain = f"{pair.gain.ratio:.3f}× [{pair.gain.low:.3f}, {pair.gain.high:.3f}]"
        demo.note(f"tree against stock, run {number}", f"{gain}, bar {1 + pair.bar:.3f}×: {pair.verdict.value}")
    taus = demo.body("final-1.json").summary
    demo.note("accept length τ", f"stock {taus['stock'].tau:.2f}, tree {taus['candidate'].tau:.2f}")
    demo.note("seal", f"{demo.folder / 'seal.json'}, signed by {demo.body('seal.json').signer}")


def plant_fault(stock: Path, target: Path) -> None:
    """A worktree of stock with a logit bias of 2 on every 7th vocabulary id (the fault of paper section 3.4)."""
    base = git.base_commit(stock)
    faulty = patch.apply(stock, git.tree_of(stock, base), FAULT.read_bytes(), name=FAULT.name)
    checkout.add(stock, git.commit_tree(stock, faulty.tree, "A fault on purpose", [base]), target)


def _reject(demo: Demo) -> None:
    console.verdict("\n# A fault on purpose: a logit bias of 2 on every 7th vocabulary id, planted in a worktree.")
    plant_fault(demo.folder / "stock", demo.folder / "faulty")
    speeds = (ExitCode.OK, ExitCode.NEGATIVE, ExitCode.INDETERMINATE)
    demo.run(
        "Its speed alone gives nothing away.",
        "pair-run", "stock", "faulty", *demo.design, "--starts", "1", "--requests", "10", "--noise-from", demo.noise,
        "-o", "fault-pair.json", expect=speeds,
    )  # fmt: skip
    demo.run(
        "Token forcing must reject it (exit code 1).",
        "force-tokens", "fault-pair.json", "--scorer", "stock", "-o", "fault-forced.json", expect=(ExitCode.NEGATIVE,),
    )  # fmt: skip
    for name, file in (("tree", "forced-1.json"), ("fault", "fault-forced.json")):
        body = demo.body(file)
        rates = f"{body.sides['candidate'].rate:.2%} (stock {body.sides['stock'].rate:.2%})"
        demo.note(f"token forcing, {name}", f"mismatch {rates}: {body.verdict.value}")


STAGES: tuple[Callable[[Demo], None], ...] = (_measure, _improve, _seal, _reject)


def run_demo(folder: Path) -> Demo:
    """Everything, into an empty folder.

    Raises:
        ExternalFailed: a stage gave another verdict than a quiet machine gives.
    """
    demo = Demo(folder)
    for stage in STAGES:
        stage(demo)
    return demo
