"""The selftest: every system, every repeat, the artifact rewritten after each."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from specpilot_cli.artifacts.selftest import PlantedSystem, SelftestBody, Trial
from specpilot_cli.core import console
from specpilot_cli.core.digest import harness_sha256, sha256_folder
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable, UsageFault
from specpilot_cli.core.paths import PACKAGE
from specpilot_cli.deployment import RequestSet, load_deployment, load_requests
from specpilot_cli.engine.stock import init_stock
from specpilot_cli.selftest.bench import Bench
from specpilot_cli.selftest.copied import Copied
from specpilot_cli.selftest.plant import plant
from specpilot_cli.selftest.summary import summarised
from specpilot_cli.selftest.system import System
from specpilot_cli.selftest.trial import Stand
from specpilot_cli.worktrees.git import tree_id

Save = Callable[[SelftestBody], None]
DEPLOYMENT = "miniengine-hybrid__dflash2__cpu__r1"
TOKENS = 40
"""Output tokens a request: a repeat of 8 requests has 320 a side, and 5 large events against none are rejected."""
DRAFTS = "4"
"""Draft positions: short chains, so that all of a chain is accepted often enough for faults in its last row."""
LEAST_REQUESTS = 8
SERVERS = (
    "Servers stay up over the repeats of one system, stock's and the scorer's over all; planted memories forget "
    "between repeats. harness-edited runs the whole command from a copy of the package, with fresh servers every time."
)


@dataclass(frozen=True)
class Plan:
    """What was asked for."""

    systems: tuple[System, ...]
    repeats: int
    requests: int
    seed: int
    jobs: int


def start(plan: Plan) -> tuple[SelftestBody, RequestSet]:
    """The body before anything ran, and the pool of requests.

    Raises:
        UsageFault: fewer requests than a gain needs, or more than there are.
    """
    deployment = load_deployment(DEPLOYMENT)
    pool = load_requests(deployment.requests, "develop")
    if not LEAST_REQUESTS <= plan.requests <= len(pool.requests):
        raise UsageFault(f"--requests must be from {LEAST_REQUESTS} to {len(pool.requests)}.")
    flags = (*deployment.record.server_args, "--speculative-num-draft-tokens", DRAFTS)
    shape = deployment.record.shape.model_copy(update={"max_new_tokens": TOKENS})
    record = deployment.record.model_copy(update={"server_args": flags, "shape": shape})
    body = SelftestBody(
        deployment=record,
        requests=pool.record,
        requests_per_repeat=plan.requests,
        repeats=plan.repeats,
        seed=plan.seed,
        noise=0.0,
        servers=SERVERS,
        systems=(),
    )
    return body, pool


def resumed(fresh: SelftestBody, old: SelftestBody) -> SelftestBody:
    """`fresh` with the repeats of `old`.

    Raises:
        InputUnusable: `old` is another selftest.
    """
    for name in ("deployment", "requests", "requests_per_repeat", "repeats", "seed"):
        if getattr(fresh, name) != getattr(old, name):
            raise InputUnusable(f"--resume: {name} differs.", f"It was {getattr(old, name)}.")
    return fresh.model_copy(update={"systems": old.systems, "trials": old.trials, "noise": old.noise})


def require_same_harness() -> None:
    """Stop where the package itself is edited meanwhile: every system would be refused for that.

    Raises:
        EnvironmentUnusable: it is; the repeats so far are on disk.
    """
    if sha256_folder(PACKAGE) != harness_sha256():
        raise EnvironmentUnusable(
            "SpecPilot's own sources were edited while the selftest ran.", "Its gates are no longer those that began."
        )


class Selftest:
    """One selftest in a temporary folder."""

    def __init__(self, plan: Plan, body: SelftestBody, pool: RequestSet, save: Save) -> None:
        self.plan, self.body, self.pool, self.save = plan, body, pool, save
        self.lock = Lock()
        self.caveats: list[str] = []

    def run(self) -> SelftestBody:
        """Plant everything first (an edit that does not fit fails at once), then run what is missing."""
        with tempfile.TemporaryDirectory(prefix="specpilot-selftest-") as name:
            folder = Path(name).resolve()
            stock = init_stock(folder / "stock", "miniengine").path
            places = {s.name: plant(s, stock, folder / s.name) for s in self.plan.systems}
            self._record(places)
            self.save(self.body)
            parts = [self.plan.systems[n :: self.plan.jobs] for n in range(self.plan.jobs)]
            if self.plan.jobs == 1:
                self._worker(folder, stock, places, parts[0], 0)
            else:
                with ThreadPoolExecutor(self.plan.jobs) as pool:
                    list(pool.map(lambda n: self._worker(folder, stock, places, parts[n], n), range(self.plan.jobs)))
        return self.body

    def _record(self, places: dict[str, Path]) -> None:
        found = tuple(
            PlantedSystem(
                name=s.name, does=s.does, kind=s.kind, catches=tuple(map(str, s.catches)), tree=tree_id(place)
            )
            for s, place in ((s, places[s.name]) for s in self.plan.systems)
        )
        if self.body.systems and self.body.systems != found:
            raise InputUnusable("--resume: the planted systems are others.", "The engine or the selection has changed.")
        self.body = self.body.model_copy(update={"systems": found})

    def _worker(
        self, folder: Path, stock: Path, places: dict[str, Path], systems: Sequence[System], number: int
    ) -> None:
        """Systems one after the other, on servers of this thread's own; noise anew for each: an hour is long."""
        bench = Bench(stock, self.body.deployment, self.pool, name=f"selftest-{number}", noise=self.body.noise)
        try:
            for system in systems:
                missing = self._missing(system)
                if missing:
                    self._noise(bench)
                stand = self._stand(system, bench, folder, places[system.name], number)
                for repeat in missing:
                    trial = stand.trial(repeat)
                    require_same_harness()
                    self._add(trial)
        finally:
            bench.close()

    def _missing(self, system: System) -> list[int]:
        done = {t.repeat for t in self.body.trials if t.system == system.name}
        return [n for n in range(self.plan.repeats) if n not in done]

    def _noise(self, bench: Bench) -> None:
        if not bench.measure_noise(self.pool.requests[: self.plan.requests]):
            self.caveats.append("the noise was measured on a disturbed machine")
        with self.lock:
            self.body = self.body.model_copy(update={"noise": max(bench.noise, self.body.noise)})

    def _stand(self, system: System, bench: Bench, folder: Path, worktree: Path, number: int) -> Stand:
        copied = Copied(folder / f"copy-{number}", self.body.deployment) if system.from_copy else None
        place = folder / system.name
        return Stand(system, place, worktree, bench, copied, self.plan.requests, self.plan.seed)

    def _add(self, trial: Trial) -> None:
        with self.lock:
            self.body = summarised(self.body.model_copy(update={"trials": (*self.body.trials, trial)}))
            self.save(self.body)
        by = f" by {trial.gate}" if trial.gate else f" ({trial.pair_verdict and trial.pair_verdict.value})"
        console.say(
            f"{trial.system} {trial.repeat + 1}/{self.plan.repeats}: {trial.outcome}{by}, {trial.seconds:.1f} s"
        )
