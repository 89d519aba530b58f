"""Where a core's numbers sit in a larger model: axes, tensor by tensor.

The larger model's residual stream holds the core's d channels in `copies` blocks of d, each `gain` times the core's
value, and nothing in the other channels. With gain^2 * copies * d = D the mean square over all D channels is the core's
over its d, so a norm's result is the core's times 1 / gain at the same epsilon; its weight is divided by `gain`. For
powers of two all of this is exact in BF16: 2 copies and gain 2 where D = 8 d.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Inert = Literal["random", "tiny"]


@dataclass(frozen=True)
class Axis:
    """One dimension of a tensor: its full size, where each core index goes (in every copy), and by which factor."""

    size: int
    places: Tensor
    """[copies, core size]."""
    factor: float = 1.0


@dataclass(frozen=True)
class Rule:
    """How a tensor is filled: rows, columns (None for vectors), and what the rows are that the core has not."""

    rows: Axis
    columns: Axis | None
    inert: Inert | Tensor = "random"
    """A boolean [rows] marks the tiny ones where only some are."""
    quiet_columns: bool = False
    """The columns beside the core's are tiny too (an embedding's: they would enter the stream)."""


def widening(core: int, full: int) -> tuple[int, float]:
    """Copies and gain for a hidden size.

    Raises:
        ValueError: the ratio is not 4^k or 2 * 4^k.
    """
    for copies in (1, 2):
        ratio = full / (copies * core)
        if ratio >= 1 and full % (copies * core) == 0 and math.log(ratio, 4).is_integer():
            return copies, math.sqrt(ratio)
    raise ValueError(f"hidden size {full} is not 4^k or 2 * 4^k times {core}: the widening would not be exact")


def simple(full: int, core: int) -> Axis:
    """The first `core` of `full`."""
    return Axis(full, torch.arange(core).unsqueeze(0))


def parts(sizes: list[tuple[int, int]]) -> Axis:
    """Several (full, core) stretches one behind the other, such as q, k and v in one projection."""
    places, begin = [], 0
    for full, core in sizes:
        places.append(begin + torch.arange(core))
        begin += full
    return Axis(begin, torch.cat(places).unsqueeze(0))


class Placement:
    """Axes of one architecture, from the `config.json` of core and full model (or drafter)."""

    def __init__(self, core: dict[str, Any], full: dict[str, Any]) -> None:
        self.core, self.full = core, full
        self.copies, self.gain = widening(core["hidden_size"], full["hidden_size"])
        self.offset_norms = core["architectures"][0].startswith("Qwen3_5")
        self._check()

    def _check(self) -> None:
        """Groups of heads must be the same, or a core's query would read another's keys."""
        pairs = [("num_attention_heads", "num_key_value_heads"), ("linear_num_value_heads", "linear_num_key_heads")]
        for many, few in pairs:
            if many in self.core and self.core[many] * self.full[few] != self.full[many] * self.core[few]:
                raise ValueError(f"{many} / {few} differs between core and full model")
        same = ("head_dim", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim", "rms_norm_eps")
        for name in (*same, "rope_theta", "conv_kernel_size", "conv_group_size"):
            if self._value(self.core, name) != self._value(self.full, name):
                raise ValueError(f"{name} differs between core and full model")

    @staticmethod
    def _value(config: dict[str, Any], name: str) -> Any:
        return config.get(name, config.get("dflash_config", {}).get(name))

    def both(self, name: str, times: int = 1) -> tuple[int, int]:
        """(full, core) of a config number."""
        return self._value(self.full, name) * times, self._value(self.core, name) * times

    def stream(self, factor: float, blocks: int = 1) -> Axis:
        """Channels of the residual stream, `blocks` times side by side."""
        full, core = self.both("hidden_size")
        inside = torch.arange(core).repeat(blocks) + full * torch.arange(blocks).repeat_interleave(core)
        places = inside + core * torch.arange(self.copies).unsqueeze(1)
        return Axis(full * blocks, places, factor)

    def written(self) -> Axis:
        """Rows that write to the stream."""
        return self.stream(self.gain)

    def read(self, blocks: int = 1) -> Axis:
        """Columns that read a normed stream: every copy with its share."""
        return self.stream(1 / self.copies, blocks)

    def features(self) -> Axis:
        """Columns of `fc`: the raw stream behind several layers."""
        ids = self.core.get("dflash_config", {}).get("target_layer_ids")
        ids = ids or self.core["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
        return self.stream(1 / (self.copies * self.gain), len(ids))

    def groups(self) -> Axis:
        """Rows of a convolution's `kernel_projection`: sides x taps x groups; the groups of every copy."""
        size, taps = self._value(self.core, "conv_group_size"), self._value(self.core, "conv_kernel_size")
        full, core = (hidden // size for hidden in self.both("hidden_size"))
        stretch = torch.arange(core).repeat(2 * taps) + full * torch.arange(2 * taps).repeat_interleave(core)
        places = stretch + core * torch.arange(self.copies).unsqueeze(1)
        return Axis(2 * taps * full, places)

    def linear_inputs(self) -> tuple[Axis, Tensor]:
        """Rows of `in_proj_qkv` (and channels of the convolution), and which inert ones are values."""
        keys = self.both("linear_num_key_heads", self.core["linear_key_head_dim"])
        values = self.both("linear_num_value_heads", self.core["linear_value_head_dim"])
        axis = parts([keys, keys, values])
        return axis, torch.arange(axis.size) >= 2 * keys[0]

    def rank(self) -> Axis:
        """Of the pairwise head."""
        names = ("markov_rank", "selector_rank")
        full, core = (next(v for n in names if (v := self._value(c, n))) for c in (self.full, self.core))
        return simple(full, core)

    def rule(self, name: str) -> Rule:
        """The rule of a matrix (or of a vector over heads) by its name.

        Raises:
            ValueError: a tensor that has no rule.
        """
        for pattern, make in _RULES:
            if re.search(pattern, name):
                rule: Rule = make(self)
                return rule
        raise ValueError(f"there is no rule for {name}")

    def heads(self, name: str, times: int = 1) -> Axis:
        """Rows of the heads that a config key counts, `times` channels each."""
        return simple(*self.both(name, times))


def _queries(p: Placement) -> Rule:
    width = p.core["head_dim"] * (2 if p.offset_norms else 1)  # Qwen3.5 has each head's gate behind its query
    blocks = 2 if p.core["architectures"][0].endswith("Eagle3") else 1
    return Rule(p.heads("num_attention_heads", width), p.read(blocks))


def _keys(p: Placement, inert: Inert) -> Rule:
    blocks = 2 if p.core["architectures"][0].endswith("Eagle3") else 1
    return Rule(p.heads("num_key_value_heads", p.core["head_dim"]), p.read(blocks), inert)


def _linear(p: Placement, columns: bool) -> Rule:
    axis, values = p.linear_inputs()
    return Rule(axis, p.read() if columns else None, values if columns else "random")


def _values(p: Placement) -> Axis:
    return p.heads("linear_num_value_heads", p.core["linear_value_head_dim"])


_RULES: list[tuple[str, Any]] = [
    (r"embed_tokens\.weight$", lambda p: Rule(p.heads("vocab_size"), p.written(), "random", quiet_columns=True)),
    (r"lm_head\.weight$", lambda p: Rule(p.heads("vocab_size"), p.read(), "tiny")),
    (r"\.q_proj\.weight$", _queries),
    (r"\.k_proj\.weight$", lambda p: _keys(p, "random")),
    (r"\.v_proj\.weight$", lambda p: _keys(p, "tiny")),
    (r"\.o_proj\.weight$", lambda p: Rule(p.written(), p.heads("num_attention_heads", p.core["head_dim"]), "tiny")),
    (r"\.gate_proj\.weight$", lambda p: Rule(p.heads("intermediate_size"), p.read())),
    (r"\.up_proj\.weight$", lambda p: Rule(p.heads("intermediate_size"), p.read(), "tiny")),
    (r"\.down_proj\.weight$", lambda p: Rule(p.written(), p.heads("intermediate_size"), "tiny")),
    (r"\.in_proj_qkv\.weight$", lambda p: _linear(p, columns=True)),
    (r"\.conv1d\.weight$", lambda p: _linear(p, columns=False)),
    (r"\.in_proj_z\.weight$", lambda p: Rule(_values(p), p.read())),
    (r"\.in_proj_[ab]\.weight$", lambda p: Rule(p.heads("linear_num_value_heads"), p.read())),
    (r"\.(A_log|dt_bias)$", lambda p: Rule(p.heads("linear_num_value_heads"), None)),
    (r"\.out_proj\.weight$", lambda p: Rule(p.written(), _values(p), "tiny")),
    (r"(^|\.)fc\.weight$", lambda p: Rule(p.written(), p.features(), "tiny")),
    (r"_conv\.kernel_projection\.weight$", lambda p: Rule(p.groups(), p.read(), "tiny")),
    (r"\.predecessor_codebook$|\.markov_w1\.weight$", lambda p: Rule(p.heads("vocab_size"), p.rank())),
    (r"\.successor_codebook$|\.markov_w2\.weight$", lambda p: Rule(p.heads("vocab_size"), p.rank(), "tiny")),
    (r"\.hidden_projection\.weight$", lambda p: Rule(p.rank(), p.read(), "tiny")),
]
STREAM_NORMS = re.compile(r"(^|\.)(input_layernorm|post_attention_layernorm|hidden_norm|norm)\.weight$")
"""Norms over the stream; `linear_attn.norm` is one over a head."""
HEAD_NORMS = re.compile(r"(linear_attn\.norm|\.q_norm|\.k_norm)\.weight$")


def placed_layers(core: int, full: int, every: int = 1) -> list[int]:
    """Full index of each core layer: evenly spread, in whole groups of `every` layers of which the last is special.

    Raises:
        ValueError: the counts are not multiples of `every`, or the core is the deeper one.
    """
    if core % every or full % every or core > full:
        raise ValueError(f"{core} layers do not fit into {full} in groups of {every}")
    few, many = core // every, full // every
    return [every * (i * many // few) + j for i in range(few) for j in range(every)]
