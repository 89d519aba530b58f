"""What the user writes after `--provider` -> a provider."""

from __future__ import annotations

from dataclasses import dataclass, field

from specpilot_cli.agents.provider import Provider
from specpilot_cli.agents.providers.anthropic import DEFAULT_MODEL
from specpilot_cli.agents.providers.command import TIME_LIMIT_S, Command, Runner
from specpilot_cli.agents.providers.detached import Detached
from specpilot_cli.agents.providers.replay import Replay
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import UsageFault

FORMS = "anthropic, anthropic:MODEL, replay:FILE, command:PROGRAM ARGUMENTS"


@dataclass(frozen=True)
class Settings:
    """What providers need beside their spec. Each takes what concerns it."""

    round_id: str = ""
    key: Secret = field(default_factory=Secret)
    """From `take_key(os.environ)`."""
    model: str = DEFAULT_MODEL
    """Where the spec names none."""
    base_url: str | None = None
    """None: ANTHROPIC_BASE_URL, else the public API."""
    max_tokens: int = 0
    """Upper limit on every answer; 0: as the call says."""
    max_retries: int = 4
    timeout_s: float = 600.0
    backoff_s: float = 1.0
    runner: Runner | None = None
    """The sandbox that `command:` runs in."""
    command_limit_s: float = TIME_LIMIT_S


def make_provider(spec: str, settings: Settings) -> Provider:
    """The provider that a spec names.

    Raises:
        UsageFault: no such provider, or a spec without what it needs. EnvironmentUnusable: no SDK, key or program.
        InputUnusable: no readable recording.
    """
    kind, colon, rest = spec.partition(":")
    rest = rest.strip()
    if kind == "anthropic" and (rest or not colon):
        return Detached(
            settings.key,
            model=rest or settings.model,
            base_url=settings.base_url,
            max_tokens=settings.max_tokens,
            max_retries=settings.max_retries,
            timeout_s=settings.timeout_s,
            backoff_s=settings.backoff_s,
            round_id=settings.round_id,
        )
    if kind == "replay" and rest:
        return Replay(rest)
    if kind == "command" and rest:
        if settings.runner is None:
            raise UsageFault("The provider 'command:' runs in a sandbox, and there is none.", "", "Install bubblewrap.")
        return Command(rest, settings.runner, settings.command_limit_s)
    raise UsageFault(f"There is no provider '{spec}'.", "", f"There are: {FORMS}.")
