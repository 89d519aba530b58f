"""Seals in an entry's `evidence/`, verified for `memory check`: memory and sealing are rooms side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path


def seal_fault(allowed_signers: Path | None) -> Callable[[Path], str | None]:
    """A function from a seal's path to what is wrong with it, in one line; None where it holds.

    The files that it names are looked for beside it and among the shipped profiles.
    """
    from specpilot_cli.controller.judge import judge
    from specpilot_cli.core.errors import SpecPilotError
    from specpilot_cli.core.paths import config_dir, share_dir
    from specpilot_cli.sealing.sign import SIGNERS_NAME
    from specpilot_cli.sealing.verify import Verified, verify

    signers = allowed_signers or config_dir() / SIGNERS_NAME

    def fault(path: Path) -> str | None:
        try:
            outcome = verify(str(path), [path.parent, share_dir("profiles")], signers, judge)
        except SpecPilotError as error:
            return f"{error.fact} {error.reason}".strip()
        if isinstance(outcome, Verified):
            return None
        how = ", ".join(f"{key} {value}" for key, value in asdict(outcome).items() if key != "file")
        return f"{path}: {_WORDS[type(outcome).__name__]}: {how}."

    return fault


_WORDS = {
    "Damaged": "the seal is damaged",
    "UnknownKey": "signed by a key that this machine does not trust",
    "BadSignature": "the signature is not of this statement",
    "Missing": "a file that it names is missing",
    "Changed": "a file that it names was changed",
    "Contradiction": "its evidence does not support it",
}
