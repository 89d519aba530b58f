"""What the checks look at: a target, a drafter, and the flags that would start them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

DFLASH_ARCHITECTURES = ("DFlashDraftModel", "DFlashLagunaForCausalLM", "MuseGlimmerAssistantModel")
DFLASH2_ARCHITECTURES = ("DFlash2DraftModel",)
DSPARK_ARCHITECTURES = ("DSparkDraftModel", "Qwen3DSparkModel", "LingDSparkModel")
DEFAULT_DFLASH_BLOCK = 16
"""`srt/arg_groups/speculative_hook.py:286-322`."""
DEFAULT_DSPARK_BLOCK = 7
"""`srt/arg_groups/fields/spec.py:80`."""

PREFIXED = {
    "mask_token_id": "dspark_noise_token_id",
    "target_layer_ids": "dspark_target_layer_ids",
    "block_size": "dspark_block_size",
    "markov_rank": "dspark_markov_rank",
    "markov_head_type": "dspark_markov_head_type",
}
"""DSPARK's other spelling of a key, which wins (`dspark_components/dspark_config.py:208`)."""


class Tensor(NamedTuple):
    """A tensor's header."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Checkpoint:
    """A model folder, read by its headers."""

    name: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor] | None = None
    """None where the folder has no safetensors file."""
    absent: tuple[str, ...] = ()
    """Tensors that the index lists and no file has."""
    tokens: frozenset[str] | None = None
    """Added tokens of the tokenizer; None where there is none."""

    @property
    def text(self) -> Mapping[str, Any]:
        """The text part of a multimodal config, else the config."""
        found = self.config.get("text_config")
        return found if isinstance(found, Mapping) else self.config

    @property
    def architectures(self) -> tuple[str, ...]:
        """As the config names them."""
        found = self.config.get("architectures")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def whole(self, key: str) -> int | None:
        """An integer of the text config; None where it is not there or no integer."""
        return as_int(self.text.get(key))


@dataclass(frozen=True)
class Pair:
    """A target, its drafter and the engine's flags."""

    target: Checkpoint
    drafter: Checkpoint
    flags: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """`SGLANG_…` environment settings."""

    @property
    def kind(self) -> str | None:
        """DFLASH, DFLASH2, DSPARK or EAGLE3 by the drafter's architecture; None for another one."""
        for name in self.drafter.architectures:
            if name in DFLASH_ARCHITECTURES:
                return "DFLASH"
            if name in DFLASH2_ARCHITECTURES:
                return "DFLASH2"
            if name in DSPARK_ARCHITECTURES:
                return "DSPARK"
            if "eagle3" in name.lower():
                return "EAGLE3"
        return None

    @property
    def parallel(self) -> bool:
        """Whether the drafter proposes a block in one pass from captured target layers."""
        return self.kind in ("DFLASH", "DFLASH2", "DSPARK")

    @property
    def algorithm(self) -> str | None:
        """`--speculative-algorithm`, in capitals as the engine takes it."""
        found = self.value("--speculative-algorithm", "--speculative-algo")
        return found.upper() if found else None

    def nested(self, key: str) -> Any:
        """A drafter key: DSPARK's own spelling, then `dflash_config`, `dspark_config`, the text part, the top.

        `dflash_utils.py:597-822`, `dspark_components/dspark_config.py:208`.
        """
        config = self.drafter.config
        places = [config.get("dflash_config"), config.get("dspark_config"), self.drafter.text, config]
        if self.kind == "DSPARK" and config.get(PREFIXED.get(key, "")) is not None:
            return config[PREFIXED[key]]
        found = [place[key] for place in places if isinstance(place, Mapping) and place.get(key) is not None]
        return found[0] if found else None

    def inner(self, key: str) -> Any:
        """A key that is read from `dflash_config` alone."""
        found = self.drafter.config.get("dflash_config")
        return found.get(key) if isinstance(found, Mapping) else None

    def value(self, *names: str) -> str | None:
        """Value of the last of the named flags (`--flag value`, `--flag=value`)."""
        found = None
        for at, word in enumerate(self.flags):
            name, equals, value = word.partition("=")
            if name in names:
                found = value if equals else (self.flags[at + 1] if at + 1 < len(self.flags) else None)
        return found

    def number(self, *names: str) -> int | None:
        """An integer flag."""
        return as_int(self.value(*names))

    def given(self, name: str) -> bool:
        """Whether a flag is there at all."""
        return any(word.partition("=")[0] == name for word in self.flags)


def as_int(value: object) -> int | None:
    """An integer, or a string of one; None otherwise (`true` is no integer here)."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    try:
        return int(value) if isinstance(value, str) else None
    except ValueError:
        return None
