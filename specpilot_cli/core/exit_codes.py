"""Exit codes of every command. One place, because users script against them."""

from enum import IntEnum


class ExitCode(IntEnum):
    """grep's rule (0 yes, 1 no, 2 and above trouble) plus git-bisect's 125 for "cannot tell"."""

    OK = 0
    NEGATIVE = 1
    USAGE = 2
    INPUT = 3
    ENVIRONMENT = 4
    EXTERNAL = 5
    BUG = 70
    INDETERMINATE = 125
    INTERRUPTED = 130
    BROKEN_PIPE = 141


MEANING: dict[ExitCode, str] = {
    ExitCode.OK: "done; the verdict is positive",
    ExitCode.NEGATIVE: "done; the verdict is negative",
    ExitCode.USAGE: "usage: a flag or an argument is wrong",
    ExitCode.INPUT: "an input artifact is unusable",
    ExitCode.ENVIRONMENT: "the environment is unusable",
    ExitCode.EXTERNAL: "the engine or an external tool failed",
    ExitCode.BUG: "a bug in SpecPilot",
    ExitCode.INDETERMINATE: "indeterminate: measure more",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.BROKEN_PIPE: "the reader closed the pipe",
}
