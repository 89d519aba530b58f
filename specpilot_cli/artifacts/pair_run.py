"""`specpilot.pair-run/1`: two systems on the same requests, interleaved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record, Sha256, TokenId
from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, ServerRecord
from specpilot_cli.artifacts.profile import Tau
from specpilot_cli.artifacts.verdict import Verdict

Arm = Literal["stock", "candidate"]


class Design(Record):
    """How the sides alternate. Fixed before anything is measured; `--resume` refuses another one."""

    order: tuple[Arm, ...]
    """One entry a block, such as A B B A."""
    repeats: Annotated[int, Field(ge=1)]
    """Times that the order is run through."""
    placement: Literal["resident", "restart"]
    """resident: both servers stay up and requests alternate; restart: a fresh server for every block."""
    warmup_requests: Count
    cooldown_s: NonNegative
    seed: Count


class Sample(Record):
    """One request on one arm, timed by the controller's own clock."""

    block: Count
    repeat: Count
    arm: Arm
    request_id: str
    benchmark: str
    concurrency: Count
    started_s: NonNegative
    """Since the pair-run's first request."""
    wall_s: Positive
    completion_tokens: Count
    verify_steps: Count
    correct_drafts: Count
    output_sha256: Sha256


class Output(Record):
    """Tokens of one request on one arm (first repeat; later repeats only have a digest)."""

    arm: Arm
    request_id: str
    input_ids: tuple[TokenId, ...]
    output_ids: tuple[TokenId, ...]


class Estimate(Record):
    """A ratio with its 95 % interval."""

    ratio: Positive
    low: Positive
    high: Positive
    confidence: Fraction = 0.95
    resamples: Count
    method: str


class ArmSummary(Record):
    """One arm over all its samples."""

    tau: Tau | None
    """None for an arm without speculation."""
    output_tokens_per_s: Positive
    tpot_ms: Positive
    """Time per output token (ITL ignores tokens that arrive together, so it is not used)."""


class PairRunBody(Record):
    """Raw samples first; everything else can be recomputed from them."""

    deployment: DeploymentRecord
    requests: RequestSetRecord
    design: Design
    purpose: Literal["gain", "noise"]
    """noise: both arms are the same tree; the artifact is what `pair-run --noise` takes."""
    stock: ServerRecord
    candidate: ServerRecord
    vary: tuple[str, ...]
    """Configuration keys that may differ between the arms."""
    differences: tuple[str, ...] = ()
    """Keys that do differ, each as `key: stock -> candidate`."""
    samples: tuple[Sample, ...] = ()
    outputs: tuple[Output, ...] = ()
    summary: dict[Arm, ArmSummary] = Field(default_factory=dict)
    gain: Estimate | None = None
    noise: NonNegative | None = None
    """|log ratio| half-width of the stock-against-stock run, as a fraction (0.01 = 1 %)."""
    noise_source: Sha256 | None = None
    outputs_changed: Count = 0
    """Requests whose tokens differ between the arms."""
    bar: NonNegative | None = None
    """What the lower bound of the gain must exceed, as a fraction."""
    verdict: Verdict | None = None
    reason: str = ""
    pairs_needed: Count | None = None
    """Pairs that UNDERPOWERED still needs."""


class PairRunArtifact(Envelope):
    """Two systems on the same requests."""

    schema_: Literal["specpilot.pair-run/1"] = Field(default="specpilot.pair-run/1", alias="schema")
    body: PairRunBody
