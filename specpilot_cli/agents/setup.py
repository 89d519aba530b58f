"""The folder of a round: what it was begun with, kept there so that resuming needs nothing else."""

from __future__ import annotations

import secrets
from pathlib import Path

from pydantic import ValidationError

from specpilot_cli.artifacts.base import Record, Sha256
from specpilot_cli.artifacts.io import read_bytes, write_atomic
from specpilot_cli.artifacts.round import BudgetLimits, RoundSettings
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable

NAME = "order.json"


class Begun(Record):
    """`order.json`: a round's settings and the digests of the artifacts copied beside it."""

    round_id: str
    settings: RoundSettings
    limits: BudgetLimits
    base_url: str | None = None
    ceiling: Sha256
    history: tuple[Sha256, ...] = ()


def ceiling_file(folder: Path) -> Path:
    """The ceiling that the round was begun with."""
    return folder / "inputs" / "ceiling.json"


def history_file(folder: Path, number: int) -> Path:
    """The artifact of an earlier round."""
    return folder / "inputs" / f"history-{number}.json"


def begin(
    folder: Path,
    settings: RoundSettings,
    limits: BudgetLimits,
    ceiling: str,
    history: tuple[str, ...],
    base_url: str | None = None,
) -> Begun:
    """Make the folder.

    Args:
        ceiling: path of the artifact, or `-`.
    Raises:
        EnvironmentUnusable: the folder holds something. InputUnusable: an artifact cannot be read.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EnvironmentUnusable(
            f"{folder}: is not empty.", "", f"Name another --dir, or go on: specpilot agent round --resume {folder}"
        )
    data = [read_bytes(name) for name in (ceiling, *history)]
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    for path, content in zip(
        [ceiling_file(folder), *(history_file(folder, n) for n in range(len(history)))], data, strict=True
    ):
        write_atomic(path, content)
    begun = Begun(
        round_id=secrets.token_hex(6),
        settings=settings,
        limits=limits,
        base_url=base_url,
        ceiling=sha256_bytes(data[0]),
        history=tuple(sha256_bytes(content) for content in data[1:]),
    )
    keep(folder, begun)
    return begun


def keep(folder: Path, begun: Begun) -> None:
    """Write `order.json`: at the beginning, and when a budget was changed."""
    write_atomic(folder / NAME, (begun.model_dump_json(indent=2) + "\n").encode())


def reopen(folder: Path) -> Begun:
    """What a round was begun with.

    Raises:
        InputUnusable: no round is there, or its files were changed.
    """
    try:
        begun = Begun.model_validate_json((folder / NAME).read_bytes())
    except OSError as error:
        raise InputUnusable(f"{folder}: holds no round.", error.strerror or "", "Name the folder of a round.") from None
    except ValidationError as error:
        raise InputUnusable(f"{folder / NAME}: is damaged.", str(error.errors()[0]["msg"])) from None
    named = [(ceiling_file(folder), begun.ceiling)]
    named += [(history_file(folder, number), digest) for number, digest in enumerate(begun.history)]
    for path, digest in named:
        if sha256_bytes(read_bytes(str(path))) != digest:
            raise InputUnusable(f"{path}: was changed since the round was begun.")
    return begun


def with_limits(begun: Begun, limits: BudgetLimits) -> Begun:
    """`begun` with the budgets that are given anew; the others stay."""
    given = {name: value for name, value in limits.model_dump().items() if value is not None}
    return begun.model_copy(update={"limits": begun.limits.model_copy(update=given)})
