"""A real machine, real server processes, and a CPU that is burned only while one side answers: never PROMOTED."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.fake_worktree import candidate_worktree, stock_worktree
from support.scripted import design, requests, start_body

from specpilot_cli.artifacts.pair_run import Arm, PairRunBody
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.contention import SystemMeter
from specpilot_cli.controller.measure import Instruments
from specpilot_cli.controller.run import PairRun
from specpilot_cli.engine.base import Generation
from specpilot_cli.engine.miniengine.adapter import MiniengineAdapter

ASKED = requests(10)
FLAGS = ("--speculative-algorithm", "DFLASH2", "--speculative-num-draft-tokens", "8")
MUST_END_AS = (Verdict.INFRA, Verdict.UNDERPOWERED)


class Burdened:
    """A server whose requests are accompanied by processes that burn every CPU."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def generate(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, **options: Any) -> list[Generation]:
        """The request, with load around it."""
        code = "import sys; print(flush=True)\nwhile True: pass"
        argv = [sys.executable, "-c", code]
        burners = [subprocess.Popen(argv, stdout=subprocess.PIPE) for _ in range(os.cpu_count() or 1)]
        try:
            for burner in burners:
                assert burner.stdout is not None
                burner.stdout.read(1)  # it runs
            return list(self._server.generate(prompts, max_new_tokens, **options))
        finally:
            for burner in burners:
                burner.kill()
                burner.communicate()


def run(folder: Path, victim: Arm | None, candidate_ms: float) -> PairRunBody:
    """A pair-run of two fake engines that really compute; `victim`'s requests are burdened."""
    stock = stock_worktree(folder / "stock", step_ms=4.0, busy=True)
    trees = {"stock": stock, "candidate": candidate_worktree(stock, folder / "new", step_ms=candidate_ms, busy=True)}

    def launch(arm: Arm) -> Any:
        server = MiniengineAdapter().launch(trees[arm], FLAGS, log=folder / f"{arm}.log")
        return Burdened(server) if arm == victim else server

    body = start_body(ASKED, design=design(warmup_requests=1))
    body, complete = PairRun(body, ASKED, launch, save=lambda body: None, instruments=Instruments()).run()
    assert complete
    return body


@pytest.mark.skipif(SystemMeter().read(os.getpid()).busy_s is None, reason="this kernel shows no CPU times")
@pytest.mark.parametrize("victim", ["stock", "candidate"])
def test_load_on_one_side_only_is_never_promoted_and_never_a_rejection(tmp_path: Path, victim: Arm) -> None:
    """Burdening stock would make an equal candidate look faster; burdening a faster candidate, slower."""
    body = run(tmp_path, victim, candidate_ms=4.0 if victim == "stock" else 2.5)
    assert body.verdict in MUST_END_AS, body.reason
    assert len(body.samples) == 40
