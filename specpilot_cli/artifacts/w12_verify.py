"""`specpilot.w12-verify/1`: whether a packed checkpoint decodes to its source, bit for bit."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Record


class Difference(Record):
    """The first place where the pack is wrong."""

    tensor: str
    channel: Count | None
    """Output channel, where the fault lies in one."""
    what: str


class W12VerifyBody(Record):
    """One comparison."""

    pack: str
    source: str | None
    """None: the decoded bits were compared with the check sums in the pack alone."""
    tensors_packed: Count
    tensors_raw: Count
    bytes_compared: Count
    difference: Difference | None
    """None where every bit is right."""


class W12VerifyArtifact(Envelope):
    """Whether a packed checkpoint decodes to its source, bit for bit."""

    schema_: Literal["specpilot.w12-verify/1"] = Field(default="specpilot.w12-verify/1", alias="schema")
    body: W12VerifyBody
