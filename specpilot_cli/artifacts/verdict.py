"""The closed set of verdicts, and the exit code that each one means."""

from __future__ import annotations

from enum import Enum

from specpilot_cli.core.exit_codes import ExitCode


class Verdict(str, Enum):
    """What a gate says. INFRA and NOT_COMPARABLE say nothing about the patch: they are never rejections."""

    PROMOTED = "PROMOTED"
    NO_EFFECT = "NO_EFFECT"
    UNDERPOWERED = "UNDERPOWERED"
    LOSSLESS = "LOSSLESS"
    LOSSY = "LOSSY"
    NOT_COMPARABLE = "NOT_COMPARABLE"
    INFRA = "INFRA"


EXIT_CODE: dict[Verdict, ExitCode] = {
    Verdict.PROMOTED: ExitCode.OK,
    Verdict.LOSSLESS: ExitCode.OK,
    Verdict.NO_EFFECT: ExitCode.NEGATIVE,
    Verdict.LOSSY: ExitCode.NEGATIVE,
    Verdict.UNDERPOWERED: ExitCode.INDETERMINATE,
    Verdict.NOT_COMPARABLE: ExitCode.ENVIRONMENT,
    Verdict.INFRA: ExitCode.EXTERNAL,
}
