"""What every engine adapter offers. The controller sees engines through this and HTTP only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Generation:
    """One request's greedy output."""

    output_ids: tuple[int, ...]
    wall_s: float
    """From sending the request to the last byte of the answer, by the caller's clock."""
    verify_steps: int
    """0 for AR."""
    correct_drafts: int
    finish_reason: str
    meta: dict[str, Any] = field(default_factory=dict)
    """The engine's own `meta_info`, unaltered: never used for a verdict."""


@dataclass(frozen=True)
class TokenScore:
    """The scorer's view of one output token, teacher-forced."""

    token: int
    token_logprob: float
    argmax: int
    argmax_logprob: float
    top_logit: float | None
    """Raw logit of the argmax; None where the engine does not give it."""
    token_logit: float | None
    top: tuple[tuple[int, float], ...] = ()
    """(id, logprob) of the most likely tokens, as many as the engine gave."""


class Server(Protocol):
    """A running engine."""

    argv: tuple[str, ...]

    def info(self) -> dict[str, Any]:
        """The whole resolved configuration (`/server_info`)."""
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, ignore_eos: bool = False, lattice: bool = False
    ) -> list[Generation]:
        """Greedy continuations of a batch of prompts, in their order. `wall_s` is the batch's.

        Raises:
            ExternalFailed: the server died, timed out or answered with an error.
        """
        ...

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """Teacher-force `output` after `prompt`; one entry per output token."""
        ...

    def flush(self) -> None:
        """Drop prefix caches."""
        ...

    def alive(self) -> bool:
        """Whether the process still runs."""
        ...

    def close(self) -> None:
        """Stop the process tree. May be called twice."""
        ...


class Profilable(Protocol):
    """Extra calls that `profile` needs."""

    def start_profile(self, output_dir: Path) -> None:
        """Begin a torch-profiler trace."""
        ...

    def stop_profile(self) -> Path:
        """End it; path of the Chrome trace."""
        ...

    def measure_rows(self, rows: Sequence[int], *, context_len: int, repeats: int) -> dict[int, list[float]]:
        """Milliseconds of one target verification pass for each row count."""
        ...


class Adapter(Protocol):
    """How one engine is started from a worktree."""

    name: str

    def launch(
        self,
        worktree: Path,
        server_args: Sequence[str],
        *,
        log: Path,
        timeout_s: float = 120.0,
        device: int | None = None,
    ) -> Server:
        """Start a server from the worktree's code and wait until it is ready.

        Args:
            device: index of the only device it may use, among those that are visible here (GPUs; CPUs of a deployment
                on a CPU); None: all of them.
        Raises:
            ExternalFailed: it did not come up; the message quotes the log's last line.
        """
        ...

    def scorer_args(self, server_args: Sequence[str]) -> tuple[str, ...]:
        """Flags of a token-forcing scorer for the same target: AR, FP32 LM head."""
        ...
