"""`specpilot.lattice/1`: header and index of recorded drafter lattices; the arrays are safetensors shards beside it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Record, Sha256
from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, ServerRecord

Normalisation = Literal["vocabulary", "candidates", "none"]


class Shard(Record):
    """One complete shard. It holds whole requests."""

    file: Annotated[str, Field(pattern=r"^shard-\d{5,}\.safetensors$")]
    sha256: Sha256
    bytes: Count
    steps: Count
    requests: Annotated[tuple[str, ...], Field(min_length=1)]
    """Ids, in the order of the shard's `request` indices."""


class LatticeBody(Record):
    """What the shards hold.

    Tensors of a shard with S steps of R requests: `request` [S], `offset` [S] (the anchor is this output token of its
    request), `anchor` [S], `ids` [S, D, K], `logprobs` [S, D, K], `transitions` [S, D, K, K] (conditioned drafters),
    `continuation` [S, D + 1] (-1: not recorded), `accepted` [S] and `bonus` [S] (-1: the engine did not step here),
    `text` [T] (prompts and outputs, one after the other), `text_start` [R + 1], `prompt_tokens` [R]. Integers are
    int32, scores float32 natural logarithms.
    """

    positions: Annotated[int, Field(ge=1, le=255)]
    """D: draft positions a step."""
    candidates: Annotated[int, Field(ge=1, le=256)]
    """K: candidates a position, best first."""
    vocab_size: Annotated[int, Field(ge=1)]
    transitions: Normalisation
    """What the transition scores are normalised over; `none`: the drafter is not conditioned."""
    dense: bool
    """A lattice at every output position: any builder's own trajectory can be replayed exactly."""
    drafter: str
    """Algorithm, as the engine names it."""
    recorder: str
    """How the lattices were obtained."""
    new_tokens: Count
    """Output tokens after which a request counts as ended (the recording goes on, so that no step is censored)."""
    deployment: DeploymentRecord | None
    server: ServerRecord | None
    requests: RequestSetRecord | None
    shards: tuple[Shard, ...] = ()


class LatticeArtifact(Envelope):
    """Recorded drafter lattices."""

    schema_: Literal["specpilot.lattice/1"] = Field(default="specpilot.lattice/1", alias="schema")
    body: LatticeBody
