"""Tasks for the executors' tests: functions that a worker finds by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specpilot_cli.agents.executor import Place
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.worktrees.git import base_tree, tree_id
from specpilot_cli.worktrees.pool import lease


def add(place: Place, arguments: Mapping[str, Any]) -> Any:
    """A sum, and where it was made."""
    return {"sum": arguments["a"] + arguments["b"], "device": place.device, "pid": os.getpid()}


def noted(place: Place, arguments: Mapping[str, Any]) -> Any:
    """Its own begin and end, monotonic seconds, in the order in which tasks of a device ran."""
    begun = time.monotonic()
    time.sleep(arguments["seconds"])
    return {"begun": begun, "ended": time.monotonic()}


def refuse(place: Place, arguments: Mapping[str, Any]) -> Any:
    """An error that a user can act on."""
    raise InputUnusable("A fact.", "A reason.", "A remedy.")


def break_down(place: Place, arguments: Mapping[str, Any]) -> Any:
    """A bug."""
    raise ZeroDivisionError("a bug")


def no_json(place: Place, arguments: Mapping[str, Any]) -> Any:
    """A value that JSON does not have."""
    return {"bytes": b"x"}


def die(place: Place, arguments: Mapping[str, Any]) -> Any:
    """Killed by itself the first `times` times; then the processes that tried."""
    tried = Path(arguments["tried"])
    with tried.open("a") as file:
        file.write(f"{os.getpid()}\n")
    pids = [int(line) for line in tried.read_text().split()]
    if len(pids) <= arguments["times"]:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    return {"pids": pids}


def trees(place: Place, arguments: Mapping[str, Any]) -> Any:
    """Tree ids of the repository that came along: stock's, and of a worktree of each commit."""
    assert place.repository is not None
    found = []
    for commit in arguments["commits"]:
        with lease(place.repository, commit) as worktree:
            found.append(tree_id(worktree))
    return {"path": str(place.repository), "stock": base_tree(place.repository), "trees": found}


def environment(place: Place, arguments: Mapping[str, Any]) -> Any:
    """Names of environment variables here."""
    return sorted(os.environ)


def refuse_nothing(place: Place, arguments: Mapping[str, Any]) -> Any:
    """A value that is the same wherever it was made."""
    return {"square": arguments["n"] ** 2, "device": place.device}
