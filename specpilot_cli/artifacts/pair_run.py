"""`specpilot.pair-run/1`: two systems on the same requests, interleaved."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, Fraction, NonNegative, Positive, Record, Sha256, TokenId
from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, ServerRecord
from specpilot_cli.artifacts.profile import Tau
from specpilot_cli.artifacts.verdict import Verdict

Arm = Literal["stock", "candidate"]
Placement = Literal["resident", "restart", "swap"]


class Design(Record):
    """How the sides alternate. Fixed before anything is measured; `--resume` refuses another one."""

    order: Annotated[tuple[Arm, ...], Field(min_length=2)]
    """One entry a block, such as A B B A; mirrored on every second batch (resident) or repeat (restart)."""
    repeats: Annotated[int, Field(ge=1)]
    """Times that the order is run through."""
    placement: Placement
    """resident: both servers stay up and a block is one batch; restart: a block is a fresh server and every batch;
    swap: as restart, but the two blocks of a pair run at once, the first on the first device, the second on the
    second, so that A B B A exchanges the devices."""
    devices: tuple[Count, ...] = ()
    """swap: the two devices' indices (GPUs; CPUs of a deployment on a CPU). Else empty: those that are visible."""
    starts: Annotated[int, Field(ge=1)] = 1
    """Resident: times that both servers are started anew during the run, the batches shared out among the starts.
    With 1, how the two servers happened to start is in the gain but not in its interval."""
    concurrencies: tuple[Annotated[int, Field(ge=1)], ...] = (1,)
    """Requests in flight; each value is a cell of its own in the gain."""
    batches: Annotated[int, Field(ge=1)] | None = None
    """At most so many batches of each size and benchmark: with large ones beside single requests, the requests that
    fill the large ones need not all be sent alone."""
    warmup_requests: Count
    """Unrecorded requests after each server start, with prompts that are not measured; then a batch of each size."""
    cooldown_s: NonNegative
    """Pause before each block."""
    fresh_prompts: Count = 0
    """Prompts that the controller makes for this run alone (`controller.fresh`); not part of the gain."""
    seed: Count
    """Of the order of the batches and of the bootstrap."""


class Sample(Record):
    """One request on one arm, timed by the controller's own clock. The requests of a batch share their time."""

    block: Count
    """Index into the order; blocks 2k and 2k + 1 are a pair."""
    repeat: Count
    arm: Arm
    request_id: str
    benchmark: str
    concurrency: Count
    batch: Count
    """Index of the batch within its concurrency: the unit that is paired and resampled."""
    start: Count = 0
    """Resident: which start of the two servers answered. A resumed run counts on from those before it."""
    device: Count | None = None
    """Index of the device that the arm's server had to itself (swap); None: the design gives no devices."""
    started_s: NonNegative
    """Since the pair-run's first request."""
    wall_s: Positive
    completion_tokens: Count
    verify_steps: Count
    correct_drafts: Count
    output_sha256: Sha256
    """Over the output's ids in decimal, separated by commas."""
    foreign_cpu: NonNegative | None
    """CPUs that other processes than this arm's server and the controller used meanwhile; None: not observable."""
    own_cpu: NonNegative | None = None
    """CPUs that this arm's server and the controller used meanwhile; None: not observable."""
    idle_cpu: NonNegative | None = None
    """CPUs that the other arm's server used meanwhile, which has nothing to do; None: it does not run."""
    wait_share: NonNegative | None
    """Time the server's threads waited for a CPU / wall time (can exceed 1 with threads); None: not observable."""
    contaminated: bool
    """Another process took time from this request (`controller.contention`)."""


class FreshPrompt(Record):
    """A prompt that stands in no file."""

    id: str
    """`fresh:` and a number; its samples and outputs carry it as their request id."""
    input_ids: tuple[TokenId, ...]
    max_new_tokens: Annotated[int, Field(ge=1)]


class Output(Record):
    """Tokens of one request on one arm: one entry for every distinct output that was timed."""

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


class AtConcurrency(Record):
    """The gain of the cells of one batch size."""

    concurrency: Annotated[int, Field(ge=1)]
    gain: Estimate


class ArmSummary(Record):
    """One arm over all its samples."""

    tau: Tau | None
    """None for an arm without speculation."""
    output_tokens_per_s: Positive
    tpot_ms: Positive
    """Time per output token, prefill included (ITL ignores tokens that arrive together, so it is not used)."""


class PairRunBody(Record):
    """Raw samples first; everything else can be recomputed from them."""

    deployment: DeploymentRecord
    requests: RequestSetRecord
    design: Design
    purpose: Literal["gain", "noise", "autoregressive"]
    """noise: both arms are the same tree; the artifact is what `pair-run --noise-from` takes. autoregressive: the
    candidate is the stock tree without speculation (`force-tokens --phase0` takes it); nothing is judged."""
    stock: ServerRecord
    candidate: ServerRecord
    """`info` of both is empty until the server has run."""
    vary: tuple[str, ...]
    """Configuration keys that may differ between the arms."""
    server_args: tuple[str, ...]
    """Engine flags given to both arms beside the deployment's."""
    candidate_args: tuple[str, ...] = ()
    """Engine flags given to the candidate only."""
    boot: str
    """Identity of the machine's current boot: timings before and after a reboot are not mixed."""
    differences: tuple[str, ...] = ()
    """Keys that do differ, each as `key: stock -> candidate`, those under `vary` included."""
    samples: tuple[Sample, ...] = ()
    fresh: tuple[FreshPrompt, ...] = ()
    fresh_samples: tuple[Sample, ...] = ()
    """Timed like the others, and compared with them, never added to them."""
    outputs: tuple[Output, ...] = ()
    summary: dict[Arm, ArmSummary] = Field(default_factory=dict)
    gain: Estimate | None = None
    by_concurrency: tuple[AtConcurrency, ...] = ()
    """Where there are several batch sizes: the gain of each. The verdict is about `gain`, all of them together."""
    device_ratio: Estimate | None = None
    """swap: speed of the second device over the first, for the same server; it is not in the gain."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs in the order of their indices, as the driver gives them; empty without one."""
    noise: NonNegative | None = None
    """What the bar takes twice: of this run when `purpose` is noise, else of `noise_source` (scaled up where that had
    more requests). 0.01 = 1 %."""
    noise_source: Sha256 | None = None
    outputs_changed: Count = 0
    """Requests whose tokens differ between the arms."""
    bar: NonNegative | None = None
    """What the lower bound of the gain must exceed, as a fraction."""
    verdict: Verdict | None = None
    """None while measuring, and for a noise run that went well."""
    reason: str = ""
    problems: tuple[str, ...] = ()
    """Every finding behind NOT_COMPARABLE (`arms: …`) or INFRA (`machine: …`)."""
    pairs_needed: Count | None = None
    """Pairs that UNDERPOWERED still needs; None where no number of pairs would settle it soon."""


class PairRunArtifact(Envelope):
    """Two systems on the same requests."""

    schema_: Literal["specpilot.pair-run/1"] = Field(default="specpilot.pair-run/1", alias="schema")
    body: PairRunBody
