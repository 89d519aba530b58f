"""A `specpilot` that measures nothing: `fake_specpilot.py FOLDER COMMAND…` writes the artifacts that a plan wants.

FOLDER holds `plan.json` (role -> what its first, second, … start does; the last holds for all that follow) and
`templates.json` (valid artifacts), and gets `starts.jsonl`, a line a start. Standard library only: it starts at once.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE, ARGV = Path(sys.argv[1]), sys.argv[2:]
CODES = {
    "PROMOTED": 0, "LOSSLESS": 0, "NO_EFFECT": 1, "LOSSY": 1, "UNDERPOWERED": 125, "NOT_COMPARABLE": 4, "INFRA": 5,
}  # fmt: skip
DEFAULTS: dict[str, list[Any]] = {"noise": [0.01], "forced": ["LOSSLESS"], "profile": ["ok"], "seal": ["ok"]}
WORDS = "words of the engine"


def option(name: str) -> str | None:
    """Value behind an option."""
    return ARGV[ARGV.index(name) + 1] if name in ARGV else None


NAME = option("-o") or option("--resume") or ""
ROLE = {"profile": "profile", "seal": "seal", "force-tokens": "forced"}.get(ARGV[0], NAME.split("-")[0])
TEMPLATES = json.loads((HERE / "templates.json").read_bytes())


def tree(worktree: str) -> str:
    """Tree id of a worktree, as git has it, if that is what lies there."""
    subprocess.run(["git", "diff", "--quiet", "HEAD"], cwd=worktree, check=True)
    done = subprocess.run(["git", "rev-parse", "HEAD^{tree}"], cwd=worktree, check=True, capture_output=True)
    return done.stdout.decode().strip()


def begin() -> dict[str, Any]:
    """Note the start; what the plan says of it."""
    starts = HERE / "starts.jsonl"
    before = [json.loads(line) for line in starts.read_text().splitlines()] if starts.exists() else []
    number = sum(start["role"] == ROLE for start in before)
    trees = [tree(word) for word in ARGV[1:3] if word.startswith("trees/")]
    done = Path(NAME).exists() and json.loads(Path(NAME).read_bytes())["complete"]
    start = {"role": ROLE, "name": NAME, "resumed": "--resume" in ARGV, "argv": ARGV, "trees": trees, "done": done}
    with starts.open("a") as file:
        file.write(json.dumps({**start, "pid": os.getpid(), "environment": sorted(os.environ)}) + "\n")
    steps = json.loads((HERE / "plan.json").read_bytes()).get(ROLE, DEFAULTS.get(ROLE, ["PROMOTED"]))
    step = steps[min(number, len(steps) - 1)]
    return step if isinstance(step, dict) else {"do": step}


def write(artifact: dict[str, Any], *, complete: bool) -> None:
    """Put the artifact in its place at once."""
    artifact["complete"] = complete
    Path(f".{NAME}").write_text(json.dumps(artifact))
    Path(f".{NAME}").replace(NAME)


def artifact(step: dict[str, Any], measured: int) -> dict[str, Any]:
    """What this start would write."""
    made: dict[str, Any] = TEMPLATES["pair" if ARGV[0] == "pair-run" else ROLE]
    body, do = made["body"], step["do"]
    if ARGV[0] == "pair-run":
        trees = [tree(word) for word in ARGV[1:3] if word.startswith("trees/")]
        body["stock"]["tree"], body["candidate"]["tree"] = trees[0], trees[-1]
        body["design"] |= {"repeats": int(option("--repeats") or 0), "seed": int(option("--seed") or 0)}
        body["samples"] = [TEMPLATES["sample"]] * measured
        body |= {"purpose": "noise" if ROLE == "noise" else "gain", "outputs_changed": step.get("changed", 0)}
        body["noise"] = do if isinstance(do, float) else 0.01
    if ROLE == "forced":
        body["requests"] = [TEMPLATES["request"]] * measured
        body["outputs_from"] = hashlib.sha256(Path(ARGV[1]).read_bytes()).hexdigest()
    if do in CODES:
        body |= {"verdict": do, "reason": step.get("reason", f"the figures say {do}")}
    return made


def measured_before() -> int:
    """What a resumed start goes on from."""
    if "--resume" not in ARGV:
        return 0
    old = json.loads(Path(NAME).read_bytes())
    if old["complete"]:
        fail(3, f"{NAME}: complete.")
    return len(old["body"]["requests" if ROLE == "forced" else "samples"])


def fail(code: int, fact: str, reason: str = "") -> None:
    """End as a command does."""
    print(f"error: {fact}" + (f"\nreason: {reason}" if reason else ""), file=sys.stderr)
    sys.exit(code)


def main() -> None:
    """One start."""
    step, before = begin(), measured_before()
    do = step["do"]
    if do == "refuse":
        fail(3, "The request that was sealed is in an artifact.", WORDS)
    if do == "mute":
        write(artifact(step, 0), complete=False)
        fail(5, "The engine ended with code 1 before it was ready.", WORDS)
    if do in ("die", "signal", "bug", "hang"):
        if ROLE not in ("profile", "seal"):
            write(artifact(step, before + 2), complete=False)
        if do == "hang":
            time.sleep(600)
        if do == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        fail(5 if do == "die" else 70, "The engine ended.", WORDS)
    if do == "daemon":
        keep = "import time; time.sleep(600)"
        left = subprocess.Popen([sys.executable, "-c", keep], start_new_session=True, stdin=subprocess.DEVNULL)
        (HERE / "daemon").write_text(str(left.pid))
        step = {"do": "PROMOTED"}
    write(artifact(step, before + 2), complete=True)
    sys.exit(CODES.get(step["do"], 0))


main()
