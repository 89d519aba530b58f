"""`variants.toml`: the switches that an entry adds, and what has to be tuned again in another place."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from specpilot_cli.artifacts.base import Record
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.memory.entry import MAX_TOML_BYTES, Line, first_fault, read_file

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NAME = "variants.toml"
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,63}$")]
Flag = Annotated[str, Field(pattern=r"^--[a-z][a-z0-9-]{0,127}$")]
Variable = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,127}$")]
Value = bool | int | float | str


class Switch(Record):
    """A server flag or an environment variable with a default and the values that it takes."""

    name: Name
    flag: Flag | None = None
    environment: Variable | None = None
    default: Value
    min: float | None = None
    max: float | None = None
    choices: tuple[Value, ...] = ()
    retune: str = ""
    """What to measure, and with which command, when it goes to another deployment."""

    @model_validator(mode="after")
    def _is_whole(self) -> Switch:
        if (self.flag is None) == (self.environment is None):
            raise ValueError(f"{self.name}: needs a flag or an environment variable, and not both")
        fault = self.fault(self.default)
        if fault is not None:
            raise ValueError(f"{self.name}: default {fault}")
        return self

    def fault(self, value: Value) -> str | None:
        """Why it cannot take a value; None where it can."""
        if self.choices and value not in self.choices:
            return f"{value} is none of {', '.join(map(str, self.choices))}"
        if self.min is None and self.max is None:
            return None
        if isinstance(value, (bool, str)):
            return f"{value} is no number"
        low, high = (-float("inf") if self.min is None else self.min), (float("inf") if self.max is None else self.max)
        return None if low <= value <= high else f"{value} is not from {low:g} to {high:g}"

    def spelled(self, value: Value) -> tuple[str, ...]:
        """Words for the server's command line; environment variables in the form `@env:NAME=value`."""
        if self.environment is not None:
            return (f"@env:{self.environment}={int(value) if isinstance(value, bool) else value}",)
        if isinstance(value, bool):
            return (str(self.flag),) if value else ()
        return (str(self.flag), str(value))


class Variant(Switch):
    """A mechanism that can be switched on."""

    architectures: tuple[Line, ...] = ()
    """GPU architectures that it is written for; none given: any."""
    knobs: tuple[Switch, ...] = ()


class Variants(Record):
    """`variants.toml`."""

    schema_: Literal["specpilot.variants/1"] = Field(alias="schema")
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _names_differ(self) -> Variants:
        names = [switch.name for switch in self.switches]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"variants: {twice[0]} is there twice")
        return self

    @property
    def switches(self) -> tuple[Switch, ...]:
        """Every variant and knob."""
        return tuple(s for variant in self.variants for s in (variant, *variant.knobs))


def load_variants(folder: Path) -> Variants | None:
    """The registry of an entry folder; None where it has none.

    Raises:
        InputUnusable: damaged, or not valid; file and key are said.
    """
    path = folder / NAME
    if not path.exists() and not path.is_symlink():
        return None
    data = read_file(path, MAX_TOML_BYTES)
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
        return Variants.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        raise InputUnusable(f"{path}: not a valid specpilot.variants/1.", first_fault(error)) from None
    except (ValueError, RecursionError) as error:
        raise InputUnusable(f"{path}: not TOML in UTF-8.", str(error)) from None


def server_words(registries: Sequence[Variants], chosen: Sequence[str]) -> tuple[str, ...]:
    """Server arguments for choices `name=value`, in the order of the registries.

    Raises:
        UsageFault: an unknown name, no `=`, or a value that the switch does not take.
    """
    switches = {switch.name: switch for registry in registries for switch in registry.switches}
    values: dict[str, Value] = {}
    for choice in chosen:
        name, equals, word = choice.partition("=")
        if not equals or name not in switches:
            known = ", ".join(switches) or "none"
            raise UsageFault(f"There is no variant '{choice}'.", "", f"Write NAME=VALUE; known names: {known}.")
        values[name] = _typed(word, switches[name].default)
        fault = switches[name].fault(values[name])
        if fault is not None:
            raise UsageFault(f"{name}: {fault}.", "", "See variants.toml of the entry.")
    return tuple(word for name, switch in switches.items() if name in values for word in switch.spelled(values[name]))


def _typed(word: str, like: Value) -> Value:
    """A word as a value of the default's type; left a string where it is none."""
    if isinstance(like, bool):
        return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}.get(word.lower(), word)
    for kind in (int, float) if isinstance(like, (int, float)) else ():
        try:
            return kind(word)
        except ValueError:
            continue
    return word
