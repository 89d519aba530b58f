"""Stages with a memory: each runs to its end once, goes on after a kill, and its artifact is what it was."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from specpilot_cli.agents.controller.child import Ended, Watch, run_stage
from specpilot_cli.agents.controller.environment import stage_environment
from specpilot_cli.agents.controller.settings import Settings
from specpilot_cli.agents.journal import Journal
from specpilot_cli.artifacts.io import Loaded, load
from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.core.exit_codes import ExitCode

BEGUN, ENDED = "stage begun", "stage ended"
RESUMES = 2
"""Times that a stage which died is started again."""
REFUSED = (ExitCode.USAGE, ExitCode.INPUT, ExitCode.ENVIRONMENT)


@dataclass(frozen=True)
class Stage:
    """One command."""

    name: str
    """File name of its artifact, in the controller's folder."""
    schema: str
    args: tuple[str, ...]
    engine_args: tuple[str, ...] = ()
    """After `--`."""
    resumable: bool = True
    """Whether it keeps an incomplete artifact up to date and takes `--resume`."""

    def argv(self, *, resume: bool) -> list[str]:
        """Its command line."""
        flags = ("--", *self.engine_args) if self.engine_args else ()
        return [*self.args, "--resume" if resume else "-o", self.name, *flags]


@dataclass(frozen=True)
class Done:
    """A stage that ended, well or not."""

    name: str
    artifact: Any
    """Complete; None where the stage gave none."""
    sha256: str | None
    error: str = ""
    """What the stage said last, where it gave no artifact."""
    measured: int = 0
    """Requests measured or outputs forced before a stage died; 0 where it was killed for its time."""


class Runner:
    """Carries out stages in `folder`, one at a time, and journals each."""

    def __init__(self, folder: Path, settings: Settings, journal: Journal, stopped: Callable[[], bool]) -> None:
        self.folder, self.settings, self._journal, self._stopped = folder, settings, journal, stopped
        self._ended = {event.key: event.data for event in journal.events if event.kind == ENDED}
        self.question = ""
        """Key of the question that stages run for from now on."""
        self.tell: Callable[[str], None] = lambda line: None

    def gpu_seconds(self) -> float:
        """Time of all stages since the folder was begun, without what a killed controller had not yet journalled."""
        return float(sum(data["seconds"] for data in self._ended.values()))

    def seconds_of(self, question: str) -> float:
        """Time of the stages that ran for one question."""
        return float(sum(data["seconds"] for data in self._ended.values() if data["question"] == question))

    def has_ended(self, name: str) -> bool:
        """Whether the stage is known to have ended, well or not."""
        return name in self._ended

    def run(self, stage: Stage) -> Done:
        """The stage's end, of now or of before.

        Raises:
            InputUnusable: its artifact was changed since it was measured. Stopped: the controller is to end.
        """
        if stage.name not in self._ended:
            self._carry_out(stage)
        data = self._ended[stage.name]
        if data["sha256"] is None:
            return Done(stage.name, None, None, data["error"], data["measured"])
        return self._done(stage, data["sha256"])

    def _done(self, stage: Stage, sha256: str) -> Done:
        path = self.folder / stage.name
        loaded: Loaded[Any] = load(str(path), stage.schema)
        if loaded.source.sha256 != sha256:
            raise InputUnusable(f"{stage.name}: was changed since it was measured.", "", "Begin another round.")
        return Done(stage.name, loaded.artifact, sha256)

    def require_unchanged(self, name: str) -> None:
        """Check a file that another stage is about to read.

        Raises:
            InputUnusable: it is not what the stage wrote that is journalled under this name.
        """
        known = self._ended.get(name)
        path = self.folder / name
        if known is None or not path.is_file() or sha256_file(path) != known["sha256"]:
            raise InputUnusable(f"{name}: was changed since it was measured.", "", "Begin another round.")

    def _carry_out(self, stage: Stage) -> None:
        seconds, error, late = 0.0, "", False
        for turn in range(1 + RESUMES):
            before = self._there(stage)
            if _complete(before):  # a controller was killed just after the stage had ended
                break
            ended = self._start(stage, resume=before is not None)
            seconds, error, late = seconds + ended.seconds, self._why(ended), ended.timed_out
            if not self._again(stage, ended, turn, before):
                break
        found = self._there(stage)
        whole = found if _complete(found) else None
        data: dict[str, Any] = {
            "question": self.question,
            "sha256": whole.source.sha256 if whole else None,
            "seconds": round(seconds, 3),
            "error": "" if whole else error,
            "measured": 0 if late else _measured(found),
        }
        self._journal.append(ENDED, stage.name, **data)
        self._ended[stage.name] = data

    def _why(self, ended: Ended) -> str:
        if ended.timed_out:
            return f"It was not done after {self.settings.stage_limit_s:g} s."
        return ended.error or f"It ended with code {ended.code}."

    def _again(self, stage: Stage, ended: Ended, turn: int, before: Loaded[Any] | None) -> bool:
        """Whether a stage that ended is started once more."""
        after = self._there(stage)
        if ended.timed_out or _complete(after):
            return False
        if ended.code in REFUSED:  # what is there cannot be gone on from, such as after a reboot
            (self.folder / stage.name).unlink(missing_ok=True)
            return before is not None
        if ended.code == ExitCode.EXTERNAL:  # an engine that does not come up twice will not the third time
            return turn == 0 or _measured(after) > _measured(before)
        return ended.code < 0 or ended.code == ExitCode.BUG

    def _start(self, stage: Stage, *, resume: bool) -> Ended:
        command = self.settings.command or (sys.executable, "-m", "specpilot_cli")
        argv = stage.argv(resume=resume)
        self._journal.append(BEGUN, stage.name, argv=argv)
        self.tell(f"{argv[0]}: {stage.name}")
        return run_stage(
            [*command, *argv],
            folder=self.folder,
            env=stage_environment(self.settings.environment),
            log=self.folder / "logs" / f"{stage.name}.log",
            watch=Watch(self.settings.stage_limit_s, self._stopped, self.tell),
        )

    def _there(self, stage: Stage) -> Loaded[Any] | None:
        """The stage's artifact, complete or one to go on from. What is neither is put aside."""
        path = self.folder / stage.name
        if not path.exists():
            return None
        try:
            found: Loaded[Any] = load(str(path), stage.schema, allow_incomplete=True)
        except InputUnusable:
            path.replace(path.with_name(f"{path.name}.damaged"))
            return None
        if not found.artifact.complete and not stage.resumable:
            path.unlink()
            return None
        return found


_MEASURED = ("samples", "fresh_samples", "requests")


def _complete(found: Loaded[Any] | None) -> TypeGuard[Loaded[Any]]:
    return found is not None and bool(found.artifact.complete)


def _measured(found: Loaded[Any] | None) -> int:
    """Requests or outputs in an artifact."""
    parts = [] if found is None else [getattr(found.artifact.body, name, ()) for name in _MEASURED]
    return sum(len(part) for part in parts if isinstance(part, tuple))  # the requests of a pair-run are a record
