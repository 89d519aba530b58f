"""Runs git: bytes in, bytes out, and nothing of the caller's configuration, hooks, prompts or language."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed

TIMEOUT_S = 300.0

_SETTINGS = {
    "core.autocrlf": "false",
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.fileMode": "true",
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.quotePath": "false",
    "core.symlinks": "true",
    "commit.gpgSign": "false",
    "diff.external": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "submodule.recurse": "false",
}


class GitFailed(ExternalFailed):
    """git ended with an error; `stderr` is what it said."""

    def __init__(self, args: Sequence[str], stderr: str) -> None:
        lines = [line for line in stderr.splitlines() if line.strip()]
        self.stderr = stderr
        self.first_line = lines[0].strip() if lines else "git said nothing"
        super().__init__(f"git {args[0]} failed.", self.first_line)


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Environment of every git process: no configuration, prompt, hook, pager or GIT_* of the caller."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_", "LC_", "LANG"))}
    fixed = {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_EDITOR": "false",
        "LC_ALL": "C",
    }
    return {**kept, **fixed, **(extra or {})}


def git(
    *args: str,
    cwd: Path,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    ok: Sequence[int] = (0,),
    timeout_s: float = TIMEOUT_S,
) -> bytes:
    """Run git in `cwd`; the bytes of its stdout.

    Raises:
        GitFailed: another return code than `ok`. ExternalFailed: timeout. EnvironmentUnusable: no git, no `cwd`.
    """
    settings = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
    try:
        done = subprocess.run(
            ["git", *settings, *args],
            cwd=cwd,
            input=stdin,
            capture_output=True,
            env=environment(env),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ExternalFailed(f"git {args[0]} did not end within {timeout_s:g} s.", f"In {cwd}.") from None
    except (OSError, ValueError) as error:
        reason = "git was not found." if not Path(cwd).exists() or Path(cwd).is_dir() else f"{cwd} is no folder."
        raise EnvironmentUnusable(f"git {args[0]} cannot run in {cwd}.", f"{reason} {error}") from None
    if done.returncode not in ok:
        raise GitFailed(args, done.stderr.decode(errors="replace"))
    return done.stdout


def text(*args: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
    """`git` whose answer is one line of text."""
    return os.fsdecode(git(*args, cwd=cwd, env=env)).rstrip("\n")


def paths(*args: str, cwd: Path) -> list[str]:
    """`git` whose answer is a NUL-separated list of paths."""
    return [os.fsdecode(item) for item in git(*args, cwd=cwd).split(b"\0") if item]
