"""The command run from a copy of the package, for the system that edits its harness. The real one is never named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from specpilot_cli.artifacts.deployment import DeploymentRecord
from specpilot_cli.artifacts.io import load
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.core.paths import PACKAGE, cache_dir, share_dir
from specpilot_cli.deployment import Request

VICTIM = Path("specpilot_cli/controller/contention.py")
TIMEOUT_S = 300


@dataclass
class Copied:
    """A copy of SpecPilot in `folder`, with requests of its own."""

    folder: Path
    deployment: DeploymentRecord

    @property
    def victim(self) -> Path:
        """The file of the copy that the engine is told to edit."""
        return self.folder / VICTIM

    def prepare(self, requests: list[Request]) -> None:
        """Copy the package once; write the requests and the deployment."""
        if not self.victim.exists():
            shutil.copytree(PACKAGE, self.folder / "specpilot_cli", ignore=shutil.ignore_patterns("__pycache__"))
        lines = [r.model_dump_json() for r in requests]
        (self.folder / "requests.jsonl").write_text("\n".join(lines) + "\n")
        (self.folder / f"{self.deployment.id}.toml").write_text(self._toml())

    def _toml(self) -> str:
        plain = self.deployment
        fields = {name: getattr(plain, name) for name in ("id", "engine", "model", "drafter", "gpu")}
        fields |= {"requests": "./requests.jsonl", "server_args": list(plain.server_args)}
        shape = f"[shape]\nconcurrency = 1\nmax_new_tokens = {plain.shape.max_new_tokens}\n"
        return "".join(f"{name} = {json.dumps(value)}\n" for name, value in fields.items()) + shape

    def pair_run(self, candidate: Path, seed: int) -> PairRunBody:
        """The planted tree against itself, by the restored copy: the check is that of every pair-run."""
        shutil.copyfile(PACKAGE.parent / VICTIM, self.victim)
        self._command(candidate, seed)
        found: PairRunBody = load(str(self.folder / "pair.json")).artifact.body
        return found

    def _command(self, candidate: Path, seed: int) -> None:
        place = self.folder / "pair.json"
        argv = [
            sys.executable,
            "-m",
            "specpilot_cli",
            "--quiet",
            "pair-run",
            str(candidate),
            "--noise",
            "-o",
            place.name,
        ]
        env = {
            **os.environ,
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            "SPECPILOT_SHARE": str(share_dir("profiles").parent),
            "SPECPILOT_CACHE": str(cache_dir()),
        }
        place.unlink(missing_ok=True)
        done = subprocess.run(
            [*argv, "-d", f"./{self.deployment.id}.toml", "--order", "AB", "--starts", "1", "--seed", str(seed)],
            cwd=self.folder, env=env, capture_output=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        if not place.exists():
            raise ExternalFailed(
                f"The copied SpecPilot ended with exit code {done.returncode}.",
                done.stderr.decode(errors="replace").strip(),
            )
