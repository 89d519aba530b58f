"""From a question to the stages' command lines. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.controller.runner import Stage
from specpilot_cli.agents.controller.settings import Settings
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.deployment.requests import Split
from specpilot_cli.forcing.scorer import SAME_TARGET

FIXED = (*SAME_TARGET, "num_threads", "tp_size", "pp_size", "dp_size")
"""Keys of /server_info that no question may vary: the target, and how much of the machine is used."""
RESEED = 1000
"""What a seed grows by where a question is measured again."""


def normalised(question: Question) -> Question:
    """The question in the one spelling that counts: the order of the keys that may vary means nothing."""
    return question.model_copy(update={"vary": tuple(sorted(set(question.vary)))})


def key_of(question: Question) -> str:
    """Identity of a normalised question."""
    return sha256_bytes(question.model_dump_json().encode())


def words_fault(question: Question) -> str | None:
    """Why a question's own words are refused; None where they are not."""
    for word in (*question.vary, *question.flags):
        if not word or not word.isprintable() or len(word) > 1000:
            return f"{word[:40]!r} is no key or flag."
    fixed = [key for key in question.vary if key.split(".", 1)[0] in FIXED]
    return f"{fixed[0]} may not differ from stock." if fixed else None


@dataclass(frozen=True)
class Attempt:
    """One way through a question: the first, or the one retry."""

    stem: str
    """What the names of its artifacts begin with."""
    repeats: int
    reseed: int = 0


@dataclass(frozen=True)
class Arms:
    """Worktrees, as paths from the controller's folder."""

    stock: str
    candidate: str = ""


class Plans:
    """The stages of one controller."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.design = settings, settings.design

    def attempt(self, question: Question, number: int, repeats: int) -> Attempt:
        """Attempt `number` at a question; a later one has other seeds."""
        return Attempt(f"{question.kind}-{key_of(question)[:12]}-{number}", repeats, RESEED * number)

    def _pair_run(
        self, name: str, worktrees: Sequence[str], requests: int, repeats: int, seed: int, *more: str
    ) -> Stage:
        args = ("pair-run", *worktrees, "--deployment", self.settings.deployment, "--requests", str(requests))
        design = ("--order", self.design.order, "--repeats", str(repeats), "--seed", str(seed))
        return Stage(name, "pair-run", (*args, *design, *more), self.settings.server_args)

    def noise(self, arms: Arms, repeats: int, number: int) -> Stage:
        """Stock against stock."""
        name, seed = f"noise-r{repeats}-{number}.json", self.design.seed + number
        return self._pair_run(name, (arms.stock,), self.design.promote_requests, repeats, seed, "--noise")

    def screen(self, arms: Arms, question: Question, attempt: Attempt, noise: str) -> Stage:
        """A short paired run on develop requests."""
        name, seed = f"{attempt.stem}.json", self.design.seed + attempt.reseed
        starts = ("--starts", str(self.design.screen_starts))
        more = (*starts, *self._gain(question, "develop", noise))
        return self._pair_run(
            name, (arms.stock, arms.candidate), self.design.screen_requests, attempt.repeats, seed, *more
        )

    def pair(self, arms: Arms, question: Question, attempt: Attempt, noise: str, number: int | None) -> Stage:
        """A full paired run: on develop requests, or the sealed run `number` (from 1)."""
        seed = self.design.seed if number is None else self.design.final_seeds[number - 1]
        stem = attempt.stem if number is None else f"{attempt.stem}-{number}"
        more = self._gain(question, "develop" if number is None else "sealed", noise)
        worktrees, requests = (arms.stock, arms.candidate), self.design.promote_requests
        return self._pair_run(f"{stem}.json", worktrees, requests, attempt.repeats, seed + attempt.reseed, *more)

    def _gain(self, question: Question, split: Split, noise: str) -> tuple[str, ...]:
        vary = tuple(f"--vary={key}" for key in question.vary)
        flags = tuple(f"--candidate-flag={flag}" for flag in question.flags)
        return ("--split", split, *vary, *flags, "--noise-from", noise)

    def profile(self, worktree: str, question: Question, attempt: Attempt) -> Stage:
        """Where a step's time goes."""
        args = ("profile", worktree, "--deployment", self.settings.deployment)
        requests = ("--requests", str(self.design.profile_requests))
        flags = (*self.settings.server_args, *question.flags)
        return Stage(f"{attempt.stem}.json", "profile", (*args, *requests), flags, resumable=False)

    def force(self, arms: Arms, pair: str, attempt: Attempt | None = None) -> Stage:
        """Token forcing of a paired run's outputs; named after it, or after the attempt that asks for it alone."""
        stem = attempt.stem if attempt else pair.removesuffix(".json")
        return Stage(f"{stem}-forced.json", "forcing", ("force-tokens", pair, "--scorer", arms.stock))

    def seal(self, attempt: Attempt, evidence: Sequence[str], seen: Sequence[str]) -> Stage:
        """The seal over two sealed runs, their forcing and the noise."""
        marks = tuple(word for name in seen for word in ("--seen", name))
        return Stage(f"{attempt.stem}-seal.json", "seal", ("seal", "make", *evidence, *marks), resumable=False)
