"""Starts a miniengine worktree as a server."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.http import HttpServer
from specpilot_cli.engine.process import EngineProcess, free_port, one_cpu

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "src"
CHECKPOINT = HERE / "checkpoint"


def clear_bytecode(worktree: Path) -> None:
    """Remove every `__pycache__`: tree ids leave it out, but Python runs a planted .pyc that claims its source's mtime.

    (PYTHONPYCACHEPREFIX would also hide torch's own caches and make every start many seconds slower.)
    """
    for folder in worktree.rglob("__pycache__"):
        if folder.is_symlink():
            folder.unlink()
        else:
            shutil.rmtree(folder, ignore_errors=True)


class MiniengineAdapter:
    """`engine.base.Adapter` for the embedded engine."""

    name = "miniengine"

    def launch(
        self,
        worktree: Path,
        server_args: Sequence[str],
        *,
        log: Path,
        timeout_s: float = 120.0,
        device: int | None = None,
    ) -> HttpServer:
        """See `engine.base.Adapter.launch`. The argument `@miniengine` stands for the shipped checkpoint."""
        if not (worktree / "miniengine" / "server.py").is_file():
            raise EnvironmentUnusable(f"{worktree} is not a miniengine worktree.", "It has no miniengine/server.py.")
        clear_bytecode(worktree)
        port = free_port()
        args = [str(CHECKPOINT) if arg == "@miniengine" else arg for arg in server_args]
        argv = (sys.executable, "-m", "miniengine.server", *args, "--host", "127.0.0.1", "--port", str(port))
        env = {"PYTHONPATH": str(worktree.resolve()), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONSAFEPATH": "1"}
        # no grace: Python takes 0.4 s to end torch
        process = EngineProcess(argv, cwd=worktree, env=env, log=log, grace_s=0.0, cpu=one_cpu(device))
        server = HttpServer(f"http://127.0.0.1:{port}", process, argv)
        try:
            process.wait_ready(server.healthy, timeout_s)
        except ExternalFailed:
            server.close()
            raise
        return server

    def scorer_args(self, server_args: Sequence[str]) -> tuple[str, ...]:
        """The same target, AR, with an FP32 LM head."""
        return (*autoregressive(server_args), "--fp32-lm-head")
