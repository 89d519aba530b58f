"""Makes `recording.jsonl` anew: a round over HTTP against a loopback server that speaks the Messages API.

    PYTHONPATH=tests python examples/06-agent-round/record.py FOLDER

The server's "model" is the script `tests/support/scripted_agents.py`. It also fails as the real API does: 429, 529, a
stream that breaks off, and a tool call whose JSON is cut.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.messages_server import KEY, Fault, MessagesServer
from support.scripted_agents import script

HERE = Path(__file__).parent
FAULTS = {
    1: Fault(status=429, retry_after=0.2),
    3: Fault(status=529, retry_after=0.2),
    5: Fault(drop_after=20),
    7: Fault(break_json=True),
}


def specpilot(folder: Path, *args: str, key: str = "") -> None:
    """A command in `folder`; its exit code must be 0."""
    env = {**os.environ, "ANTHROPIC_API_KEY": key} if key else None
    subprocess.run([sys.executable, "-m", "specpilot_cli", *args], cwd=folder, env=env, check=True)


def main() -> None:
    """Stock, profile, ceiling, round, recording."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    (folder / "nothing-known").mkdir()
    specpilot(folder, "stock", "init", "stock", "--engine", "miniengine")
    specpilot(folder, "profile", "stock", "--requests", "4", "-o", "profile.json")
    specpilot(folder, "ceiling", "profile.json", "-o", "ceiling.json")
    with MessagesServer(script, FAULTS) as server:
        args = ("agent", "round", "ceiling.json", "--stock", "stock", "--memory-dir", "nothing-known", "--dir", "round")
        provider = ("--provider", "anthropic:scripted", "--base-url", server.url)
        specpilot(folder, *args, *provider, key=KEY)
    specpilot(folder, "agent", "record", "round", "--to", str((HERE / "recording.jsonl").resolve()))


if __name__ == "__main__":
    main()
