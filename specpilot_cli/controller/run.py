"""The pair-run itself: walks the schedule, keeps the artifact up to date, and ends with the verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import Arm, Output, PairRunBody, Sample
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.checks import output_digest
from specpilot_cli.controller.compare import configuration_problems, differences
from specpilot_cli.controller.fresh import as_requests
from specpilot_cli.controller.judge import judge, summaries
from specpilot_cli.controller.measure import ARMS, MACHINE, Instruments, Measured, measure, warm_up
from specpilot_cli.controller.schedule import Step, finished_pairs, pair_of, remaining, schedule
from specpilot_cli.controller.sides import Launch, Servers, servers
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.deployment import Request
from specpilot_cli.forcing.thresholds import load_thresholds

Save = Callable[[PairRunBody], None]
Progress = Callable[[int, int], None]
SAVE_EVERY_S = 5.0


@dataclass
class _State:
    """What grows while the run goes on."""

    samples: list[Sample]
    outputs: list[Output]
    problems: list[str] = field(default_factory=list)

    def add(self, measured: Measured) -> None:
        have = {_identity(o) for o in self.outputs}
        self.samples += measured.samples
        self.outputs += [o for o in measured.outputs if _identity(o) not in have]
        self.problems += measured.problems

    def body(self, start: PairRunBody, records: dict[Arm, ServerRecord]) -> PairRunBody:
        made = {prompt.id for prompt in start.fresh}
        known = tuple(s for s in self.samples if s.request_id not in made)
        measured = {
            "samples": known,
            "fresh_samples": tuple(s for s in self.samples if s.request_id in made),
            "outputs": tuple(self.outputs),
            "stock": records["stock"],
            "candidate": records["candidate"],
            "summary": summaries(known),
            "problems": tuple(self.problems),
            "verdict": None,
            "reason": "",
        }
        return start.model_copy(update=measured)


def _identity(output: Output) -> tuple[Arm, str, str]:
    return (output.arm, output.request_id, output_digest(output.output_ids))


class PairRun:
    """One run over a fixed schedule. `start` holds the finished pairs of a run that is resumed.

    Args:
        start: body with deployment, requests, design and both sides filled in.
        requests: the requests that `start.requests` lists, in its order.
        launch: starts an arm's server.
        save: writes the artifact; called before the first measurement and after every pair.
        progress: called with (finished pairs, all pairs).
        at_once: start both servers side by side (`sides.servers`); `launch` is then called from two threads.
    """

    def __init__(
        self,
        start: PairRunBody,
        requests: Sequence[Request],
        launch: Launch,
        *,
        save: Save,
        progress: Progress = lambda done, total: None,
        instruments: Instruments | None = None,
        at_once: bool = False,
    ) -> None:
        self.start, self.requests, self.launch = start, tuple(requests), launch
        self.save, self.progress = save, progress
        self.instruments, self.at_once = instruments or Instruments(), at_once
        self.thresholds = load_thresholds()  # before any engine runs, which might edit the file
        self.steps = schedule(start.design, (*self.requests, *as_requests(start.fresh)))
        measured = sorted((*start.samples, *start.fresh_samples), key=lambda s: s.started_s)
        done = finished_pairs(measured, self.steps)
        kept = [s for s in measured if pair_of(s) in done]
        timed = {(s.arm, s.request_id, s.output_sha256) for s in kept}
        outputs = [o for o in start.outputs if _identity(o) in timed]
        self.state = _State(kept, outputs, [p for p in start.problems if p.startswith((ARMS, MACHINE))])
        self.todo = remaining(self.steps, done)
        elapsed = max((s.started_s + s.wall_s for s in kept), default=0.0)
        self.origin = self.instruments.clock() - elapsed
        self.starts = max((s.start for s in kept), default=-1)
        self._saved_at = self.instruments.clock()

    def run(self, changed_since: Callable[[], list[str]] = list) -> tuple[PairRunBody, bool]:
        """Measure what is left and judge.

        Args:
            changed_since: what of harness and worktrees is no longer what it was at the start.
        Returns:
            The body, and whether the run is complete: one whose server died can be resumed.
        """
        records: dict[Arm, ServerRecord] = {"stock": self.start.stock, "candidate": self.start.candidate}
        self.save(self.state.body(self.start, records))
        tools, swap = self.instruments, self.start.design.placement == "swap"
        at_once = self.at_once or swap
        with servers(self.launch, tools.gpus, records, at_once=at_once, sleep=tools.sleep) as held:
            walk = {"resident": self._resident, "restart": self._restart, "swap": self._swap}
            try:
                comparable = walk[self.start.design.placement](held)
            except ExternalFailed as failure:
                return self._failed(failure, records), False
            self.state.problems += [ARMS + text for text in (*held.changed, *changed_since())]
            body = self.state.body(self.start, records)
            if not comparable:
                return _refused(body), True
        return judge(body, self.thresholds), True

    def _failed(self, failure: ExternalFailed, records: dict[Arm, ServerRecord]) -> PairRunBody:
        text = f"{failure.fact} {failure.reason}".strip()
        body = self.state.body(self.start, records)
        return body.model_copy(update={"verdict": Verdict.INFRA, "reason": text})

    def _comparable(self, held: Servers) -> bool:
        """Compared as soon as both configurations are known: nothing is measured in vain."""
        stock, candidate = held.records["stock"], held.records["candidate"]
        unknown = not (stock.info and candidate.info)
        free = self.start.purpose == "autoregressive"
        return unknown or free or not configuration_problems(stock, candidate, self.start.vary)

    def _resident(self, held: Servers) -> bool:
        if not self.todo:
            return self._comparable(held)
        planned = None
        for step in self.todo:
            if step.start != planned:
                planned = step.start
                self.starts += 1
                if not self._start_both(held):
                    return False
            self.instruments.sleep(self.start.design.cooldown_s)
            self._measure(held, step)
        return self._comparable(held)

    def _start_both(self, held: Servers) -> bool:
        held.stop_all()
        held.start("stock", "candidate")
        comparable = self._comparable(held)
        for arm in held.running if comparable else ():
            self._warm_up(held, arm)
        return comparable

    def _restart(self, held: Servers) -> bool:
        block: tuple[int, int] | None = None
        for step in self.todo:
            if (step.repeat, step.block) != block:
                block = (step.repeat, step.block)
                held.stop_all()
                self.instruments.sleep(self.start.design.cooldown_s)
                held.start(step.arm)
                if not self._comparable(held):
                    return False
                self._warm_up(held, step.arm)
            self._measure(held, step)
        return self._comparable(held)

    def _swap(self, held: Servers) -> bool:
        pair: tuple[int, int] | None = None
        with ThreadPoolExecutor(2) as pool:
            for first, second in zip(self.todo[::2], self.todo[1::2], strict=True):
                if (first.repeat, first.block // 2) != pair:
                    pair = (first.repeat, first.block // 2)
                    held.devices = {step.arm: step.device for step in (first, second) if step.device is not None}
                    if not self._start_both(held):
                        return False
                self._measure_at_once(held, (first, second), pool)
        return self._comparable(held)

    def _measure_at_once(self, held: Servers, steps: tuple[Step, Step], pool: ThreadPoolExecutor) -> None:
        together = Barrier(2)
        waiting = [pool.submit(self._sample, held, step, together) for step in steps]
        wait(waiting)
        failures = [error for future in waiting if (error := future.exception()) is not None]
        for failure in sorted(failures, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise failure  # the cause first: the other side only waited in vain
        for future in waiting:
            self.state.add(future.result())
        self._keep(held, steps[1])

    def _warm_up(self, held: Servers, arm: Arm) -> None:
        design, limit = self.start.design, self.start.deployment.shape.max_new_tokens
        warm_up(held.running[arm], self.requests, design.warmup_requests, limit, design.concurrencies)

    def _measure(self, held: Servers, step: Step) -> None:
        self.state.add(self._sample(held, step))
        self._keep(held, step)

    def _sample(self, held: Servers, step: Step, together: Barrier | None = None) -> Measured:
        other = held.running.get("candidate" if step.arm == "stock" else "stock")
        try:
            return measure(
                step,
                held.running[step.arm],
                max_new_tokens=self.start.deployment.shape.max_new_tokens,
                info=held.records[step.arm].info,
                origin_s=self.origin,
                instruments=self.instruments,
                gpus_since=held.gpu_states,
                idle=None if together else other,
                beside=other if together else None,
                together=together,
                start=max(0, self.starts),
            )
        except BaseException:
            if together:
                together.abort()
            raise

    def _keep(self, held: Servers, step: Step) -> None:
        pairs = len(finished_pairs(self.state.samples, self.steps))
        now = self.instruments.clock()
        if step.block % 2 or now - self._saved_at > SAVE_EVERY_S:
            self.save(self.state.body(self.start, held.records))
            self._saved_at = now
            self.progress(pairs, len(self.steps) // 2)


def _refused(body: PairRunBody) -> PairRunBody:
    found = configuration_problems(body.stock, body.candidate, body.vary)
    update = {
        "verdict": Verdict.NOT_COMPARABLE,
        "reason": "; ".join(found[:3]),
        "problems": tuple(ARMS + text for text in found),
        "differences": tuple(differences(body.stock.info, body.candidate.info).values()),
    }
    return body.model_copy(update=update)
