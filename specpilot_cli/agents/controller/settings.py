"""What a controller is started with: one file in its folder, fixed as long as the folder lives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from specpilot_cli.artifacts.base import Count, GitTree, NonNegative, Positive, Record
from specpilot_cli.artifacts.io import write_atomic
from specpilot_cli.core.errors import InputUnusable

NAME = "settings.json"
AtLeastOne = Annotated[int, Field(ge=1)]


class Design(Record):
    """How much each kind of question measures."""

    order: Annotated[str, Field(pattern=r"^(AB|BA)+$")] = "ABBA"
    repeats: AtLeastOne = 1
    screen_requests: AtLeastOne = 10
    screen_starts: AtLeastOne = 1
    promote_requests: AtLeastOne = 28
    """Of noise, promote and final."""
    profile_requests: AtLeastOne = 4
    noisy: NonNegative = 0.045
    """Noise (0.01 = 1 %) above which the noise is measured again with `noisy_repeats`, and everything after it too."""
    noisy_repeats: AtLeastOne = 2
    seed: Count = 0
    """Of screen and promote."""
    final_seeds: tuple[Count, Count] = (1, 2)


class Settings(Record):
    """One controller: a stock repository on a deployment."""

    stock: str
    """A worktree of the stock repository, absolute. Its object store holds the trees that are asked about."""
    base_tree: GitTree
    """Tree id of stock: a repository whose mark of stock was moved is noticed."""
    deployment: str
    """Id, or an absolute path of a .toml file."""
    design: Design = Field(default_factory=Design)
    server_args: tuple[str, ...] = ()
    """Engine flags of both arms, beside the deployment's."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Added to that of every stage, such as CUDA_VISIBLE_DEVICES. No secrets: it lies in a file."""
    stage_limit_s: Positive = 3600.0
    """Wall-clock time after which a stage is killed."""
    command: tuple[str, ...] = ()
    """Program that stands for `specpilot`; empty: this one."""


def load_settings(folder: Path) -> Settings:
    """The settings of a controller's folder.

    Raises:
        InputUnusable: missing or damaged.
    """
    path = folder / NAME
    try:
        return Settings.model_validate_json(path.read_bytes(), strict=True)
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "document"
        raise InputUnusable(f"{path}: not the settings of a controller.", f"{where}: {first['msg']}") from None


def keep_settings(folder: Path, settings: Settings) -> None:
    """Make the folder (nobody else's, mode 0700) and write the settings, or check that they are those of before.

    Raises:
        InputUnusable: the folder was begun with other settings, which its answers rest on.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    if not (folder / NAME).exists():
        write_atomic(folder / NAME, (settings.model_dump_json(indent=2) + "\n").encode())
        return
    there = load_settings(folder)
    changed = [name for name in Settings.model_fields if getattr(there, name) != getattr(settings, name)]
    if changed:
        raise InputUnusable(
            f"{folder}: was begun with other settings.",
            f"These differ: {', '.join(changed)}.",
            "What was measured there rests on them; begin in another folder.",
        )
