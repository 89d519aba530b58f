"""Errors that a user can act on: a fact, its reason, a remedy. Each class fixes one exit code."""

from __future__ import annotations

from specpilot_cli.core.exit_codes import ExitCode


def _one_line(text: str, limit: int = 300) -> str:
    """Collapse control characters and newlines: an error is three lines whatever a damaged input put into it."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


class SpecPilotError(Exception):
    """Base of every expected failure. `str()` gives at most three lines: fact, reason, remedy."""

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, fact: str, reason: str = "", remedy: str = "") -> None:
        self.fact, self.reason, self.remedy = _one_line(fact), _one_line(reason), _one_line(remedy)
        super().__init__(self.fact)

    def __str__(self) -> str:
        lines = [self.fact]
        if self.reason:
            lines.append(f"reason: {self.reason}")
        if self.remedy:
            lines.append(f"remedy: {self.remedy}")
        return "\n".join(lines)


class UsageFault(SpecPilotError):
    """The command line cannot be carried out as written (exit 2)."""

    exit_code = ExitCode.USAGE


class InputUnusable(SpecPilotError):
    """An input artifact is damaged, of another schema, incomplete or caveated (exit 3)."""

    exit_code = ExitCode.INPUT


class EnvironmentUnusable(SpecPilotError):
    """This machine or this worktree cannot do it (exit 4)."""

    exit_code = ExitCode.ENVIRONMENT


class ExternalFailed(SpecPilotError):
    """The engine, git, ssh-keygen or another tool failed (exit 5)."""

    exit_code = ExitCode.EXTERNAL
