"""One repeat: draw requests and parameters, run the gates, and say what came of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.artifacts.selftest import Trial
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.deployment import Request
from specpilot_cli.selftest.bench import Bench
from specpilot_cli.selftest.copied import Copied
from specpilot_cli.selftest.outcome import Verdicts, declared, judge_trial
from specpilot_cli.selftest.plant import hand_over
from specpilot_cli.selftest.system import Parameters, System

ATTEMPTS = 4


def answered(pair: PairRunBody) -> bool:
    """Whether both arms answered everything: refused and broken runs have nothing to force."""
    return len({(o.arm, o.request_id) for o in pair.outputs}) == 2 * (len(pair.requests.ids) + len(pair.fresh))


@dataclass(frozen=True)
class Stand:
    """A planted system with all that its repeats need."""

    system: System
    folder: Path
    worktree: Path
    bench: Bench
    copied: Copied | None
    requests: int
    seed: int

    def trial(self, repeat: int) -> Trial:
        """Run one repeat. A machine that was disturbed (INFRA that nobody declared) gets another try."""
        seed = f"{self.seed}/{self.system.name}/{repeat}"
        random = Random(seed)
        parameters = self.system.draw(random)
        pool = self.bench.pool.requests
        drawn = random.sample(pool, min(self.requests * self.system.scale, len(pool)))
        started = time.monotonic()
        for attempt in range(1, ATTEMPTS + 1):
            verdicts, pair = self._once({**parameters, "repeat": f"{repeat}.{attempt}"}, drawn, random.getrandbits(31))
            outcome, gate = judge_trial(self.system, verdicts)
            if outcome != "undecided" or verdicts.pair is not Verdict.INFRA:
                break
        return Trial(
            system=self.system.name,
            repeat=repeat,
            seed=seed,
            parameters=parameters,
            requests=pair.requests.ids,
            attempts=attempt,
            pair_verdict=verdicts.pair,
            pair_reason=verdicts.pair_reason,
            gain=pair.gain.ratio if pair.gain else None,
            forcing_verdict=verdicts.forcing,
            forcing_reason=verdicts.forcing_reason,
            outcome=outcome,
            gate=gate,
            seconds=time.monotonic() - started,
        )

    def _once(self, parameters: Parameters, drawn: list[Request], seed: int) -> tuple[Verdicts, PairRunBody]:
        pair = self._pair_run(parameters, drawn, seed)
        verdicts = Verdicts(pair.verdict, pair.reason)
        if self.copied is not None:  # its checkpoint lies elsewhere: our scorer serves another target
            return verdicts, pair
        if not answered(pair) or (self.system.kind != "honest" and declared(self.system, verdicts)):
            return verdicts, pair
        forced = self.bench.force(pair)
        return Verdicts(pair.verdict, pair.reason, forced.verdict, forced.reason), pair

    def _pair_run(self, parameters: Parameters, drawn: list[Request], seed: int) -> PairRunBody:
        if self.copied is not None:
            self.copied.prepare(drawn)
            hand_over(self.folder, {**parameters, "harness_file": str(self.copied.victim)})
            return self.copied.pair_run(self.worktree, seed)
        hand_over(self.folder, {**parameters, "other_pid": self.bench.server("stock", self.bench.stock).pid})
        system = self.system
        return self.bench.pair_run(
            self.worktree, drawn, order=system.order, seed=seed, fresh=system.fresh, vary=system.vary
        )
