"""Error rates of the gate by simulation: `python -m specpilot_cli.controller.simulate [--runs 1000]` prints the table.

A simulated pair-run walks the real schedule with a clock of its own, makes samples of it, and hands them to the real
`log_ratios`, `estimate`, `noise_of` and `decide`. What is invented is only the time that a request takes:

    log wall = base(request) - [candidate] (log G + effect(request)) + drift(clock) + start(server) + noise

so that the truth is G. With `--recorded ARTIFACT` (a pair-run), base and noise are those that stock had there: its mean
log time of every request, and its deviations from them, drawn with replacement. Coverage is the share of 95 % intervals
that contain G; a false promotion is PROMOTED at G = 1 with the noise of a stock-against-stock run simulated the same
way. The unpaired comparison (all of A, then all of B, Welch's interval) and the sequential one (the same, compared
request by request) show what drift does.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from specpilot_cli.artifacts.io import load
from specpilot_cli.artifacts.pair_run import Design, Estimate, Placement, Sample
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.controller.design import parse_order
from specpilot_cli.controller.noise import noise_of
from specpilot_cli.controller.pairs import log_ratios
from specpilot_cli.controller.promote import decide
from specpilot_cli.controller.schedule import Step, schedule
from specpilot_cli.controller.stats import CONFIDENCE, estimate
from specpilot_cli.deployment import Request
from specpilot_cli.forcing.thresholds import Thresholds, load_thresholds

if TYPE_CHECKING:
    import numpy as np

TOKENS = 96
RESAMPLES = 1_999


@dataclass(frozen=True)
class Scenario:
    """One kind of machine and request set. Spreads are standard deviations of logs unless said otherwise."""

    name: str
    requests: int = 24
    repeats: int = 1
    benchmarks: int = 1
    placement: Placement = "resident"
    noise: float = 0.02
    tails: Literal["normal", "t3"] = "normal"
    effect: float = 0.03
    """Spread of the gain between requests."""
    effect_shape: Literal["normal", "skewed"] = "normal"
    drift: float = 0.0
    """Growth of log time over the whole run, linear."""
    wander: float = 0.0
    """Spread per request of a random walk of log time."""
    start: float = 0.0
    """Spread between server starts."""
    starts: int = 1
    """Of both resident servers."""
    device: float = 0.0
    """Log time that the second device takes more (swap)."""
    recording: Recording | None = None
    """Replaces base and noise."""


@dataclass(frozen=True)
class Recording:
    """Timings of a real run."""

    base: tuple[float, ...]
    """Mean log seconds of each request."""
    deviations: tuple[float, ...]
    """Of every log time from its request's mean, scaled up for the mean that they are taken from."""


SCENARIOS = (
    Scenario("lognormal noise"),
    Scenario("lognormal noise, 48 requests", requests=48),
    Scenario("lognormal noise, 4 pairs", repeats=2),
    Scenario("heavy tails (t3)", tails="t3"),
    Scenario("heavy tails, 48 requests", tails="t3", requests=48),
    Scenario("skewed request effects", effect_shape="skewed"),
    Scenario("no request effects, t3", effect=0.0, tails="t3"),
    Scenario("drift 30 %", drift=0.30, tails="t3"),
    Scenario("drift 30 % and wander", drift=0.30, wander=0.01, tails="t3", requests=48),
    Scenario("two benchmarks", benchmarks=2, requests=48),
    Scenario("8 starts alike", starts=8, tails="t3"),
    Scenario("8 starts differ 1.5 %", starts=8, start=0.015, noise=0.045, requests=48),
    Scenario("8 starts differ 3 %", starts=8, start=0.03, noise=0.045, requests=48),
    Scenario("8 starts 1.5 %, two benchmarks", starts=8, start=0.015, noise=0.045, requests=48, benchmarks=2),
    Scenario("8 starts 1.5 %, two repeats", starts=8, start=0.015, noise=0.045, repeats=2, drift=0.15),
    Scenario("restarts, quiet starts", placement="restart", repeats=2, tails="t3"),
    Scenario("restarts, starts differ 0.5 %", placement="restart", repeats=2, start=0.005),
    Scenario("restarts, starts 1 %, drift 15 %", placement="restart", repeats=2, start=0.01, drift=0.15),
    Scenario("swap, quiet starts", placement="swap", repeats=2, tails="t3"),
    Scenario("swap, devices 5 %, starts 0.5 %", placement="swap", repeats=2, device=0.05, start=0.005),
    Scenario("swap, devices 5 %, drift 30 %", placement="swap", repeats=2, device=0.05, drift=0.30, wander=0.01),
)
ONE_START = Scenario("one start, starts differ 1.5 %", start=0.015, noise=0.045, requests=48)
"""What its interval does not cover, and says so; not one of those that must."""


@dataclass(frozen=True)
class Rates:
    """Shares over all runs of a scenario."""

    coverage: float
    below: float
    """Intervals that lie wholly above the truth: their lower bound is wrong, the dangerous side."""
    above: float
    width: float
    """Mean width of the interval of the log ratio."""
    false_promotions: float
    unpaired_coverage: float
    sequential_coverage: float
    runs: int


def _requests(scenario: Scenario) -> list[Request]:
    return [
        Request(
            id=str(n), split="develop", prompt="", input_ids=(1,), max_new_tokens=TOKENS,
            benchmark=str(n % scenario.benchmarks),
        )
        for n in range(scenario.requests)
    ]  # fmt: skip


class _Machine:
    """Draws the time of every step in turn."""

    def __init__(self, scenario: Scenario, steps: Sequence[Step], log_gain: float, rng: np.random.Generator) -> None:
        self.scenario, self.rng, self.count, self.walk, self.moment = scenario, rng, len(steps), 0.0, 0.0
        ids = sorted({r.id for step in steps for r in step.requests})
        invented = rng.normal(math.log(0.2), 0.25, len(ids))
        base = rng.choice(scenario.recording.base, len(ids)) if scenario.recording else invented
        self.base = dict(zip(ids, base, strict=True))
        drawn = rng.normal(0, 1, len(ids)) if scenario.effect_shape == "normal" else rng.gamma(1.0, 1.0, len(ids)) - 1
        self.gain = dict(zip(ids, log_gain + scenario.effect * drawn, strict=True))
        self.starts: dict[object, float] = {}

    def _start(self, step: Step) -> float:
        server = (step.arm, step.start) if self.scenario.placement == "resident" else (step.repeat, step.block)
        return self.starts.setdefault(server, float(self.rng.normal(0, self.scenario.start)))

    def _shock(self) -> float:
        plan = self.scenario
        if plan.recording:
            return float(self.rng.choice(plan.recording.deviations))
        shock = self.rng.standard_t(3) / math.sqrt(3) if plan.tails == "t3" else self.rng.normal()
        return float(plan.noise * shock)

    def log_wall(self, at: int, step: Step) -> float:
        """Log time of the step at place `at` of the run."""
        plan, request = self.scenario, step.requests[0].id
        if step.device != 1:  # the two steps of a swap's pair are one moment
            self.walk += float(self.rng.normal(0, plan.wander))
            self.moment = plan.drift * at / self.count
        gain = self.gain[request] if step.arm == "candidate" else 0.0
        time = self.base[request] - gain + self.moment + self.walk + self._start(step)
        time += plan.device if step.device == 1 else 0.0
        return float(time + self._shock())


def _samples(steps: Sequence[Step], machine: _Machine) -> list[Sample]:
    clock, found = 0.0, []
    for at, step in enumerate(steps):
        wall, request = math.exp(machine.log_wall(at, step)), step.requests[0]
        found.append(
            Sample.model_construct(
                block=step.block,
                repeat=step.repeat,
                arm=step.arm,
                request_id=request.id,
                benchmark=request.benchmark,
                concurrency=1,
                batch=step.batch,
                start=step.start,
                started_s=clock,
                wall_s=wall,
                completion_tokens=TOKENS,
                verify_steps=30,
                correct_drafts=66,
                output_sha256="0" * 64,
                foreign_cpu=0.0,
                wait_share=0.0,
                contaminated=False,
            )
        )
        clock += wall
    return found


def recording_of(samples: Sequence[Sample]) -> Recording:
    """Base and noise of stock's samples. Seconds per token, so that outputs of any length compare."""
    logs: dict[str, list[float]] = {}
    for sample in samples:
        if sample.arm == "stock" and sample.completion_tokens:
            logs.setdefault(sample.request_id, []).append(math.log(TOKENS * sample.wall_s / sample.completion_tokens))
    repeated = {name: times for name, times in logs.items() if len(times) > 1}
    base = {name: sum(times) / len(times) for name, times in repeated.items()}
    deviations = [
        (time - base[name]) * math.sqrt(len(times) / (len(times) - 1))
        for name, times in repeated.items()
        for time in times
    ]
    return Recording(tuple(base.values()), tuple(deviations))


def recorded_scenarios(artifact: str) -> tuple[Scenario, ...]:
    """The timings of a pair-run artifact, replayed as they are and under drift."""
    recording = recording_of(load(artifact, "pair-run", allow_incomplete=True).artifact.body.samples)
    return (
        Scenario("recorded timings", recording=recording),
        Scenario("recorded timings, 48, drift 30 %", requests=48, drift=0.30, recording=recording),
    )


def design_of(scenario: Scenario, seed: int) -> Design:
    """The pair-run's design in a scenario."""
    return Design(
        order=parse_order("ABBA"),
        repeats=scenario.repeats,
        placement=scenario.placement,
        devices=(0, 1) if scenario.placement == "swap" else (),
        starts=scenario.starts,
        warmup_requests=0,
        cooldown_s=0.0,
        seed=seed,
    )


def pair_run(scenario: Scenario, gain: float, seed: int) -> Estimate:
    """The interval of one simulated pair-run with true gain `gain`."""
    import numpy as np

    rng, design = np.random.default_rng([seed, round(gain * 1e6)]), design_of(scenario, seed)
    steps = schedule(design, _requests(scenario))
    samples = _samples(steps, _Machine(scenario, steps, math.log(gain), rng))
    fresh = scenario.placement != "resident"
    found = estimate(log_ratios(samples), fresh_servers=fresh, seed=seed, resamples=RESAMPLES)
    assert found is not None, "every scenario has enough requests"
    return found


def without_interleaving(scenario: Scenario, gain: float, seed: int) -> tuple[bool, bool]:
    """Whether two t intervals over all of A, then all of B, contain the truth: unpaired, and request by request."""
    import numpy as np
    from scipy import stats

    rng, requests = np.random.default_rng([seed, 1]), _requests(scenario)
    rounds = 2 * scenario.repeats
    steps = [
        Step(r, block, arm, 1, n, (q,))
        for block, arm in enumerate(parse_order("AB"))
        for r in range(rounds)
        for n, q in enumerate(requests)
    ]
    machine, truth = _Machine(scenario, steps, math.log(gain), rng), math.log(gain)
    speed = -np.array([machine.log_wall(at, step) for at, step in enumerate(steps)]).reshape(2, rounds, -1)
    unpaired = stats.ttest_ind(speed[1].ravel(), speed[0].ravel(), equal_var=False).confidence_interval(CONFIDENCE)
    by_request = stats.ttest_1samp((speed[1] - speed[0]).mean(axis=0), 0.0).confidence_interval(CONFIDENCE)
    return bool(unpaired.low <= truth <= unpaired.high), bool(by_request.low <= truth <= by_request.high)


def rates(scenario: Scenario, runs: int, *, gain: float = 1.08, thresholds: Thresholds | None = None) -> Rates:
    """Coverage at `gain`, and false promotions at no gain, over `runs` runs of each."""
    limits = thresholds or load_thresholds()
    found = [pair_run(scenario, gain, seed) for seed in range(runs)]
    below, above = sum(e.low > gain for e in found), sum(e.high < gain for e in found)
    promoted = 0
    flat = replace(scenario, effect=0.0)  # stock against stock has no request effects
    for seed in range(runs):
        noise = noise_of(pair_run(flat, 1.0, runs + seed))
        promoted += decide(pair_run(scenario, 1.0, seed), limits.bar(noise, outputs_changed=False)) is Verdict.PROMOTED
    plain = [without_interleaving(scenario, gain, seed) for seed in range(runs)]
    return Rates(
        coverage=1 - (below + above) / runs,
        below=below / runs,
        above=above / runs,
        width=sum(math.log(e.high / e.low) for e in found) / runs,
        false_promotions=promoted / runs,
        unpaired_coverage=sum(unpaired for unpaired, _ in plain) / runs,
        sequential_coverage=sum(by_request for _, by_request in plain) / runs,
        runs=runs,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table on stdout."""
    parser = argparse.ArgumentParser(description="Error rates of the paired-run gate, by simulation.")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--recorded", metavar="ARTIFACT", help="a pair-run whose timings are replayed too")
    options = parser.parse_args(argv)
    runs, recorded = options.runs, recorded_scenarios(options.recorded) if options.recorded else ()
    print(f"{runs} pair-runs a row, true gain 1.08, order ABBA; error of a share near 95 %: about 0.7 points at 1,000")
    names = ("covers", "too high", "too low", "width", "promoted at 1", "unpaired", "A then B")
    print(f"{'scenario':34}{'requests':>9}{'pairs':>6}" + "".join(f"{name:>15}" for name in names), flush=True)
    for s in (*SCENARIOS, ONE_START, *recorded):
        r = rates(s, runs)
        shares = (r.coverage, r.below, r.above, r.width, r.false_promotions, r.unpaired_coverage, r.sequential_coverage)
        print(f"{s.name:34}{s.requests:>9}{2 * s.repeats:>6}" + "".join(f"{v:>15.1%}" for v in shares), flush=True)


if __name__ == "__main__":
    main()
