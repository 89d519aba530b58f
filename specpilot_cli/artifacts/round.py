"""`specpilot.round/1`: what an agent round tried, what the controller said of it, and what was kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Count, Envelope, GitTree, NonNegative, Positive, Record, Sha256
from specpilot_cli.artifacts.verdict import Verdict

QuestionKind = Literal["noise", "profile", "screen", "force", "promote", "final"]
Source = Literal["memory", "new"]
DirectionKind = Literal["algorithm", "kernel"]
Result = Literal["promoted", "lossy", "no effect", "undecided", "given up", "not tried"]
"""undecided: UNDERPOWERED, INFRA or NOT_COMPARABLE to the end; given up: the agent submitted nothing."""


class Usage(Record):
    """Tokens of model answers, as the API counts them."""

    input_tokens: Count = 0
    """Neither written to nor read from the prompt cache."""
    cache_write_tokens: Count = 0
    cache_read_tokens: Count = 0
    output_tokens: Count = 0


class Figures(Record):
    """Gain of a paired run."""

    ratio: Positive
    low: Positive
    """95 % interval."""
    high: Positive
    bar: NonNegative
    """The gain that the lower bound must exceed, such as 0.05."""
    tau_stock: float | None = None
    tau_candidate: float | None = None


class Reply(Record):
    """The controller's word. Holds no prompt, output, threshold or key."""

    kind: QuestionKind
    verdict: Verdict | None
    """PROMOTED for promote and final only where speed and losslessness both passed; None where there is nothing to
    judge (noise, profile)."""
    reason: str
    """One or two sentences for people and agents."""
    figures: Figures | None = None
    mismatch_rate: float | None = None
    summary: dict[str, Any] = Field(default_factory=dict)
    """profile: the step's time by phase and class; noise: its value."""
    artifacts: tuple[tuple[str, Sha256], ...] = ()
    """Files in the controller's folder that the answer rests on: name and digest."""
    seconds: NonNegative
    """Wall-clock time of measuring, 0 where the answer was known."""


class Assumptions(Record):
    """What a direction would change, in the terms of the cost model. Its expected gain is computed from these."""

    tau: Annotated[float, Field(ge=1)] | None = None
    """Accept length afterwards; None: as now."""
    faster: dict[str, Annotated[float, Field(gt=0)]] = Field(default_factory=dict)
    """Kernel class -> factor by which its time shrinks (2: half the time; below 1: it costs more)."""
    outside_ms: NonNegative | None = None
    """Step time outside the profiled kernels afterwards; None: as now."""


class Proposal(Record):
    """A direction as the master wrote it."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    title: Annotated[str, Field(min_length=1, max_length=160)]
    why: Annotated[str, Field(max_length=2000)]
    plan: Annotated[str, Field(max_length=6000)] = ""
    """For the agent that works on it."""
    source: Source = "new"
    entry: str | None = None
    """Of the memory, where `source` is memory."""
    kind: DirectionKind = "algorithm"
    assumes: Assumptions = Assumptions()


class AgentUse(Record):
    """What one agent cost."""

    agent: str
    turns: Count
    tool_calls: Count
    usage: Usage
    usd: NonNegative | None
    """None: no price is known for the model."""


class DirectionRecord(Record):
    """One direction, from the plan to the controller's word."""

    proposal: Proposal
    expected_gain: float
    """Ratio - 1, by the cost model from `proposal.assumes`; for memory entries the most that they can be worth."""
    result: Result
    reason: str
    tree: GitTree | None
    """What was put before the controller last."""
    vary: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    asked: tuple[Reply, ...] = ()
    report: str = ""
    """The agent's own words: data, not a finding."""
    dead_ends: tuple[str, ...] = ()


class Dropped(Record):
    """A proposal that was not tried, by rule."""

    proposal: Proposal
    expected_gain: float
    why: str


class Kept(Record):
    """An entry that the round wrote."""

    name: str
    tree: GitTree
    status: str


class Spent(Record):
    """Of the budgets."""

    calls: Count
    lost_calls: Count
    """Begun, and cut off by a kill or a broken connection before their answer was on the disk."""
    usage: Usage
    usd: NonNegative | None
    device_s: NonNegative
    """Time of measuring."""
    wall_s: NonNegative
    """While a process of the round was running."""


class BudgetLimits(Record):
    """What may be spent; None: no limit."""

    usd: NonNegative | None = None
    tokens: Count | None = None
    """Of all kinds, cached ones included."""
    device_hours: NonNegative | None = None
    """Of measuring."""
    hours: NonNegative | None = None
    """By the clock, while the round runs."""


class PromptFile(Record):
    """A prompt as it was used."""

    name: str
    sha256: Sha256


class RoundSettings(Record):
    """What the round was started with."""

    deployment: str
    stock: str
    provider: str
    model: str
    memory_dir: str | None
    """None: the room that came with SpecPilot."""
    directions: Annotated[int, Field(ge=1, le=32)] = 4
    turns: Annotated[int, Field(ge=1, le=1000)] = 40
    """Answers of a direction's agent, at most."""
    questions: Annotated[int, Field(ge=1, le=200)] = 12
    """To the controller, by one agent."""
    max_tokens: Annotated[int, Field(ge=256)] = 16_000
    """Of one answer."""
    minimum_gain: NonNegative = 0.03
    """Expected net gain below which no new algorithm is written (paper section 3.3)."""
    devices: tuple[str, ...] = ("device-0",)
    executor: Literal["local", "ray"] = "local"
    unsafe_shell: bool = False


class RoundBody(Record):
    """A round."""

    round_id: str
    settings: RoundSettings
    stock_tree: GitTree
    prompts: tuple[PromptFile, ...]
    directions: tuple[DirectionRecord, ...] = ()
    dropped: tuple[Dropped, ...] = ()
    stack: tuple[str, ...] = ()
    """Ids of the promoted directions in the final tree."""
    final_tree: GitTree | None = None
    final: Reply | None = None
    """Of the sealed measurement."""
    entries: tuple[Kept, ...] = ()
    agents: tuple[AgentUse, ...] = ()
    limits: BudgetLimits
    spent: Spent
    stopped_by: str | None = None
    """The budget or the person that ended it before its time."""
    journal_events: Count


class RoundArtifact(Envelope):
    """An agent round."""

    schema_: Literal["specpilot.round/1"] = Field(default="specpilot.round/1", alias="schema")
    body: RoundBody
