"""A true Ray cluster of two workers, in a process of its own: `python ray_scenario.py FOLDER`. Prints JSON.

A process of its own since Ray starts threads and daemons, takes over signals, and warns where pytest forbids it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support import executor_tasks
from support.mini_repo import mini_repo, raw_git

from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.executor import LocalExecutor, Result, Task, once_each
from specpilot_cli.agents.journal import Journal
from specpilot_cli.agents.ray_executor import Cluster, RayExecutor
from specpilot_cli.agents.store import Store
from specpilot_cli.worktrees.git import commit_tree, tree_id


def candidate(repository: Path) -> tuple[str, str]:
    """A commit on stock with another tree, under no ref; the tree."""
    (repository / "engine" / "model.py").write_text("layers = 1\n")
    (repository / "engine" / "new.py").write_bytes(b"\x00\r\nnew = 1\n")
    tree = tree_id(repository, untracked_files="include")
    commit = commit_tree(repository, tree, "Candidate\n", [raw_git(repository, "rev-parse", "HEAD")])
    raw_git(repository, "checkout", "--quiet", "--force", ".")
    (repository / "engine" / "new.py").unlink()
    return commit, tree


def journalled(folder: Path, executor: Any, tasks: list[Task]) -> list[Any]:
    """What a round's journal says after the tasks ran: without times, sorted, since lanes go side by side."""
    with Journal(folder / "journal.jsonl") as journal:
        once_each(Durable(journal, Store(folder / "objects")), executor, tasks)
        return sorted([event.kind, event.key, event.data] for event in journal.events)


def shown(result: Result) -> dict[str, Any]:
    """A result as JSON."""
    error = result.error
    told = None if error is None else [type(error).__name__, error.fact, error.reason, error.remedy]
    verdict = result.verdict
    return {"key": result.key, "value": result.value, "error": told, "lost": result.lost, "verdict": verdict}


def main(folder: Path) -> dict[str, Any]:
    """Everything in one cluster: starting one takes seconds."""
    repository = mini_repo(folder / "stock")
    commit, tree = candidate(repository)
    os.environ["ANTHROPIC_API_KEY"] = "sk-of-the-scenario"
    begun = time.monotonic()
    with RayExecutor(Cluster(cpus=2, devices=2)) as executor:
        started = time.monotonic()
        tasks = [
            Task("sum", "cpu", executor_tasks.add, {"a": 1, "b": 2}),
            Task("killed", "cpu", executor_tasks.die, {"tried": str(folder / "once"), "times": 1}),
            Task("always", "cpu", executor_tasks.die, {"tried": str(folder / "always"), "times": 9}),
            Task("refused", "cpu", executor_tasks.refuse),
            Task("names", "cpu", executor_tasks.environment),
            Task("trees", "cpu", executor_tasks.trees, {"commits": [commit]}, repository, (commit,)),
        ]
        results = executor.map(tasks)
        kept_key = os.environ["ANTHROPIC_API_KEY"]
        sums = [Task(f"sum/{n}", "cpu", executor_tasks.refuse_nothing, {"n": n}) for n in range(3)]
        on_ray = journalled(folder / "ray", executor, sums)
        handler = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        ended = time.monotonic()
    with LocalExecutor() as local:
        here = journalled(folder / "local", local, sums)
    return {
        "results": [shown(result) for result in results],
        "tried": len((folder / "always").read_text().split()),
        "commit": commit,
        "tree": tree,
        "stock_tree": raw_git(repository, "rev-parse", "HEAD^{tree}"),
        "repository": str(repository),
        "journals_equal": on_ray == here,
        "journal": on_ray,
        "own_sigterm": handler,
        "kept_key": kept_key,
        "start_s": started - begun,
        "tasks_s": ended - started,
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
