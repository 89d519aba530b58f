"""The gates' thresholds: `profiles/thresholds.toml`, the one place where they are written down."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from specpilot_cli.artifacts.base import Fraction, NonNegative, Positive, Record, Source
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.core.paths import share_dir

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_NAME = "thresholds.toml"
_Source = Annotated[str, Field(min_length=1)]


class _Share(Record):
    value: Fraction
    source: _Source


class _Amount(Record):
    value: Positive
    source: _Source


class _Promotion(Record):
    minimum_gain: _Share
    noise_multiple: _Amount
    changed_output_gain: _Share


class _Rate(Record):
    limit: _Share


class _Event(Record):
    margin_deltas: _Amount
    alpha: _Share
    limit: _Share


class _Delta(Record):
    grid_nats: _Amount
    default_nats: _Amount


class _Power(Record):
    probability: _Share


class _File(Record):
    confidence: _Share
    promotion: _Promotion
    rate: _Rate
    event: _Event
    delta: _Delta
    power: _Power


@dataclass(frozen=True)
class Thresholds:
    """Every threshold, and the digest of the file they were read from."""

    source: Source
    confidence: float
    minimum_gain: float
    noise_multiple: float
    changed_output_gain: float
    rate_limit: float
    event_margin_deltas: float
    event_alpha: float
    event_limit: float
    delta_grid_nats: float
    delta_default_nats: float
    power_probability: float

    def as_dict(self) -> dict[str, float]:
        """Name -> value, for the seal's statement."""
        return {name: value for name, value in vars(self).items() if isinstance(value, float)}

    def bar(self, noise: NonNegative, *, outputs_changed: bool) -> float:
        """What the lower bound of a gain must exceed, as a fraction (summary section 3.3)."""
        bar = self.minimum_gain + self.noise_multiple * noise
        return max(bar, self.changed_output_gain) if outputs_changed else bar


def _flatten(file: _File, source: Source) -> Thresholds:
    return Thresholds(
        source=source,
        confidence=file.confidence.value,
        minimum_gain=file.promotion.minimum_gain.value,
        noise_multiple=file.promotion.noise_multiple.value,
        changed_output_gain=file.promotion.changed_output_gain.value,
        rate_limit=file.rate.limit.value,
        event_margin_deltas=file.event.margin_deltas.value,
        event_alpha=file.event.alpha.value,
        event_limit=file.event.limit.value,
        delta_grid_nats=file.delta.grid_nats.value,
        delta_default_nats=file.delta.default_nats.value,
        power_probability=file.power.probability.value,
    )


def parse_thresholds(data: bytes, shown: str) -> Thresholds:
    """Thresholds from the bytes of a TOML file.

    Raises:
        InputUnusable: not TOML, a missing or unknown key, a figure without a source or out of its range.
    """
    try:
        file = _File.model_validate(tomllib.loads(data.decode("utf-8")))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise InputUnusable(f"{shown}: not valid.", f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise InputUnusable(f"{shown}: not TOML in UTF-8.", str(error)) from None
    return _flatten(file, Source(name=FILE_NAME, sha256=sha256_bytes(data)))


def load_thresholds(path: Path | None = None) -> Thresholds:
    """The installation's thresholds, or those of `path`."""
    path = path or share_dir("profiles") / FILE_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    return parse_thresholds(data, str(path))
