"""Carries out questions with the real commands as processes, and keeps every answer before it is said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

from specpilot_cli.agents.controller import findings
from specpilot_cli.agents.controller.findings import Finding
from specpilot_cli.agents.controller.gate import Progress, silent
from specpilot_cli.agents.controller.plans import Arms, Attempt, Plans, key_of, normalised, words_fault
from specpilot_cli.agents.controller.protocol import Kind, Question, Reply
from specpilot_cli.agents.controller.runner import Done, Runner
from specpilot_cli.agents.controller.settings import Settings
from specpilot_cli.agents.controller.trees import Trees
from specpilot_cli.agents.journal import Journal
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import SpecPilotError

ASKED, ANSWERED = "asked", "answered"
SEEN = ("noise-*.json", "profile-*.json", "screen-*.json", "promote-*.json")
"""Artifacts on develop requests: what `seal make --seen` is given."""
NOISE_TRIES = 2
JUDGED = (Verdict.PROMOTED, Verdict.NO_EFFECT, Verdict.UNDERPOWERED)
"""Verdicts of a screen whose outputs are there."""


class _NoNoise(Exception):
    """The noise could not be measured."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.reason)
        self.finding = finding


class Stages:
    """The controller's work, in its folder, over an open journal.

    Args:
        stopped: asked while a stage runs; true ends everything with `child.Stopped`.
    """

    def __init__(
        self, folder: Path, settings: Settings, journal: Journal, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        self.folder, self.design, self._journal = folder, settings.design, journal
        self.runner = Runner(folder, settings, journal, stopped)
        self._plans = Plans(settings)
        self._trees = Trees(Path(settings.stock), settings.base_tree, folder / "trees")
        self._known: dict[str, Reply] = {}
        self._screens: dict[str, str] = {}
        """Tree -> the pair-run of its last screen."""
        for event in journal.events:
            if event.kind == ANSWERED and event.data["keep"]:
                self._keep(event.key, Question.model_validate(event.data["question"]), event.data["reply"])

    def answer(self, question: Question, tell: Progress = silent) -> Reply:
        """The answer, measured where it is not known.

        Raises:
            Stopped: the controller is to end; the stage that ran goes on when the question is asked again.
        """
        question = normalised(question)
        self.runner.question, self.runner.tell = key_of(question), tell
        return self._answer(question)

    def _answer(self, question: Question) -> Reply:
        key = key_of(question)
        if key in self._known:
            return self._known[key].model_copy(update={"seconds": 0.0})
        asked = question.model_dump(mode="json")
        self._journal.append(ASKED, key, question=asked)
        finding = self._finding(question)
        reply = finding.reply(question.kind, self.runner.seconds_of(key))
        said = reply.model_dump(mode="json")
        self._journal.append(ANSWERED, key, question=asked, reply=said, keep=finding.keep)
        if finding.keep:
            self._keep(key, question, said)
        return reply

    def _keep(self, key: str, question: Question, said: object) -> None:
        reply = Reply.model_validate(said)
        self._known[key] = reply
        if question.kind == "screen" and question.tree and reply.verdict in JUDGED and reply.artifacts:
            self._screens[question.tree] = reply.artifacts[0][0]

    def _finding(self, question: Question) -> Finding:
        try:
            self._trees.require_stock()
            refused = self._refused(question)
            return refused or self._tried(question)
        except _NoNoise as found:
            return found.finding
        except SpecPilotError as error:  # of the machine or the folder, not of the tree
            return Finding(Verdict.INFRA, findings.flat(f"{error.fact} {error.reason}"), keep=False)

    def _refused(self, question: Question) -> Finding | None:
        """What needs no measuring."""
        tree = question.tree
        if question.kind == "noise" or (question.kind == "profile" and tree is None):
            return None
        fault = words_fault(question) or ("The question names no tree." if tree is None else self._trees.refusal(tree))
        if fault is not None:
            return Finding(Verdict.NOT_COMPARABLE, findings.flat(fault), keep=False)
        if tree == self._trees.base and not question.flags and question.kind != "profile":
            return Finding(Verdict.NO_EFFECT, "This tree is stock itself.")
        return None

    def _tried(self, question: Question) -> Finding:
        """The question's first attempt, or the second where that may say more."""
        repeats = self._repeats() if question.kind in ("screen", "promote", "final") else self.design.repeats
        first = self._attempt(question, 0, repeats)
        if not first.again:
            return first
        try:
            return self._attempt(question, 1, 2 * repeats if first.again == "repeats" else repeats)
        except _NoNoise:  # of twice the repeats
            return first

    def _attempt(self, question: Question, number: int, repeats: int) -> Finding:
        attempt = self._plans.attempt(question, number, repeats)
        ways: dict[Kind, Callable[[Question, Attempt], Finding]] = {
            "noise": lambda *_: findings.noisy(self._noise(self._repeats())),
            "profile": self._profile,
            "screen": self._screen,
            "force": self._force,
            "promote": self._promote,
            "final": self._final,
        }
        return ways[question.kind](question, attempt)

    @contextmanager
    def _arms(self, tree: str | None = None) -> Iterator[Arms]:
        """Fresh worktrees; the candidate's is removed in the end, whatever was done to it meanwhile."""
        stock = self._place(self._trees.base, "stock")
        if tree is None:
            yield Arms(stock, stock)
            return
        try:
            yield Arms(stock, self._place(tree, tree[:16]))
        finally:
            self._trees.remove(tree[:16])

    def _place(self, tree: str, name: str) -> str:
        return str(self._trees.place(tree, name).relative_to(self.folder))

    def _repeats(self) -> int:
        """Of the round's design: more where the machine is noisy."""
        first = self._noise(self.design.repeats).artifact.body.noise
        return max(self.design.repeats, self.design.noisy_repeats) if first > self.design.noisy else self.design.repeats

    def _noise(self, repeats: int) -> Done:
        """The noise of a design, measured once; a failure is not the last word.

        Raises:
            _NoNoise: not this time either.
        """
        tries = 0
        with self._arms() as arms:
            for number in count():
                stage = self._plans.noise(arms, repeats, number)
                tries += not self.runner.has_ended(stage.name)
                done = self.runner.run(stage)
                if _is_noise(done):
                    return done
                if tries == NOISE_TRIES:
                    raise _NoNoise(findings.no_noise(done))
        raise AssertionError("count() does not end")

    def _profile(self, question: Question, attempt: Attempt) -> Finding:
        with self._arms(question.tree) as arms:
            return findings.profiled(self.runner.run(self._plans.profile(arms.candidate, question, attempt)))

    def _screen(self, question: Question, attempt: Attempt) -> Finding:
        noise = self._noise(attempt.repeats)
        with self._arms(question.tree) as arms:
            return findings.paired(
                self.runner.run(self._plans.screen(arms, question, attempt, noise.name)), noise, sealed=False
            )

    def _force(self, question: Question, attempt: Attempt) -> Finding:
        """Of the tree's last screen; of one that is measured now where there is none."""
        assert question.tree is not None, "refused before"
        if question.tree not in self._screens:
            screen = self._answer(question.model_copy(update={"kind": "screen"}))
            if question.tree not in self._screens:
                return Finding(screen.verdict, f"There are no outputs to force: {screen.reason}", keep=False)
        return self._forced(self._screens[question.tree], attempt)

    def _forced(self, pair: str, attempt: Attempt | None = None, *, sealed: bool = False) -> Finding:
        self.runner.require_unchanged(pair)
        with self._arms() as arms:
            return findings.forced(self.runner.run(self._plans.force(arms, pair, attempt)), sealed=sealed)

    def _promote(self, question: Question, attempt: Attempt) -> Finding:
        return self._judged(question, attempt, None)

    def _judged(self, question: Question, attempt: Attempt, number: int | None) -> Finding:
        """A full paired run, and the forcing of its outputs where that can say anything."""
        noise, sealed = self._noise(attempt.repeats), number is not None
        with self._arms(question.tree) as arms:
            done = self.runner.run(self._plans.pair(arms, question, attempt, noise.name, number))
        speed = findings.paired(done, noise, sealed=sealed)
        if not findings.has_outputs(done, speed):
            return speed
        return findings.joined(speed, self._forced(done.name, sealed=sealed))

    def _final(self, question: Question, attempt: Attempt) -> Finding:
        """Two sealed runs, both promoted and lossless, and the seal over them."""
        runs: list[Finding] = []
        for number in (1, 2):
            found = self._judged(question, attempt, number)
            if found.verdict is not Verdict.PROMOTED:
                return replace(found, reason=f"sealed run {number}: {found.reason}").since(*runs)
            runs.append(found)
        evidence = tuple(dict.fromkeys(name for run in runs for name, _ in run.artifacts))
        for name in evidence:
            self.runner.require_unchanged(name)
        seen = sorted({path.name for mark in SEEN for path in self.folder.glob(mark)} - self._forcings() - {*evidence})
        done = self.runner.run(self._plans.seal(attempt, evidence, seen))
        if done.sha256 is None:
            return findings.UNSEALED.since(*runs)
        sealed = replace(runs[1], artifacts=((done.name, done.sha256),))
        return replace(sealed.since(*runs), reason=f"sealed; {runs[0].reason}; again: {runs[1].reason}")

    def _forcings(self) -> set[str]:
        return {path.name for path in self.folder.glob("*-forced.json")}


def _is_noise(done: Done) -> bool:
    return done.artifact is not None and done.artifact.body.verdict is None and done.artifact.body.noise is not None
