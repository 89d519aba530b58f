"""Error rates of the rate rule, and the paper's cases, by simulation.

`python -m specpilot_cli.forcing.simulate` prints the table (about a minute; `--repeats` changes that). Mismatches of a
request are binomial around the request's own rate: a Gamma factor with coefficient of variation `spread` that both arms
share (some prompts have more near-ties), and for the candidate a fault that only a share of the requests meets.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from specpilot_cli.forcing.bounds import PairedCounts
from specpilot_cli.forcing.rules import rate_rule
from specpilot_cli.forcing.thresholds import Thresholds, load_thresholds


@dataclass(frozen=True)
class Case:
    """One population of paired outputs."""

    requests: int
    tokens: int
    """Scored tokens a request."""
    stock_rate: float
    excess: float
    """Candidate's mismatch rate - stock's, averaged over requests."""
    share: float = 1.0
    """Share of the requests that meet the fault, which is the stronger for it."""
    spread: float = 0.0
    """Coefficient of variation of the requests' rates."""

    def draw(self, source: np.random.Generator) -> PairedCounts:
        """Mismatches of one experiment."""
        shape = (self.requests,)
        factor = source.gamma(1 / self.spread**2, self.spread**2, shape) if self.spread else np.ones(shape)
        fault = (source.random(shape) < self.share) * self.excess / self.share
        tokens = np.full(shape, float(self.tokens))
        stock = source.binomial(self.tokens, np.clip(self.stock_rate * factor, 0, 1))
        candidate = source.binomial(self.tokens, np.clip(self.stock_rate * factor + fault, 0, 1))
        return PairedCounts(candidate.astype(float), tokens, stock.astype(float), tokens)


def outcomes(case: Case, thresholds: Thresholds, repeats: int, seed: int) -> Counter[str]:
    """How often the rate rule says pass, reject and undecided."""
    source = np.random.default_rng(seed)
    return Counter(rate_rule(case.draw(source), thresholds).outcome for _ in range(repeats))


PAPER = {
    "lossless: 0.53 % against 0.52 %": Case(200, 2048, 0.0053, -0.0001, spread=0.5),
    "lossless: 0.72 % against 0.73 %": Case(200, 2048, 0.0072, 0.0001, spread=0.5),
    "faulty: 0.72 % against 2.0 %": Case(200, 2048, 0.0072, 0.0128, spread=0.5),
    "faulty: 0.72 % against 2.4 %": Case(200, 2048, 0.0072, 0.0168, spread=0.5),
}
"""Rates from the paper (summary section 3.4). It does not give token counts: 200 requests of 2,048 are assumed."""


def grid() -> Iterator[Case]:
    """Candidates exactly at the limit, where each error may happen in 5 % of the experiments."""
    for requests, tokens in ((24, 96), (48, 96), (200, 2048)):
        for stock_rate in (0.0002, 0.0072):
            for share, spread in ((1.0, 0.0), (1.0, 1.0), (0.25, 1.0), (0.1, 2.0)):
                yield Case(requests, tokens, stock_rate, 0.005, share, spread)


def accuracy_change(
    questions: int, lost: float, won: float, source: np.random.Generator, resamples: int = 2000
) -> tuple[float, float, float]:
    """Paired change of task accuracy of a fault, in points, with its 95 % bootstrap interval.

    Args:
        lost, won: probabilities that the fault turns a right answer wrong, and a wrong one right.
    """
    change = source.choice([-1.0, 1.0, 0.0], size=questions, p=[lost, won, 1 - lost - won])
    counts = [(change == value).sum() for value in (-1.0, 1.0, 0.0)]
    drawn = source.multinomial(questions, np.array(counts) / questions, size=resamples)  # = resampling the questions
    means = 100 * (drawn[:, 1] - drawn[:, 0]) / questions
    low, high = np.quantile(means, [0.025, 0.975])
    return 100 * float(change.mean()), float(low), float(high)


ACCURACY = (1000, 0.058, 0.042)
"""1,000 questions of which 10 % change sides give the width of the paper's interval, -1.6 points [-3.6, +0.3]."""


def _print_grid(thresholds: Thresholds, repeats: int) -> None:
    print(f"Rate rule at a true difference of {100 * thresholds.rate_limit:g} points, {repeats} experiments a row")
    print("requests tokens stock %  share spread | false pass %  false reject %")
    for case in grid():
        found = outcomes(case, thresholds, repeats, seed=1)
        print(
            f"{case.requests:8d} {case.tokens:6d} {100 * case.stock_rate:7.2f} {case.share:6.2f} {case.spread:6.1f} |"
            f" {100 * found['pass'] / repeats:12.1f} {100 * found['reject'] / repeats:15.1f}"
        )


def _print_paper(thresholds: Thresholds, repeats: int) -> None:
    print("\nThe paper's rates, 200 requests of 2,048 tokens")
    for name, case in PAPER.items():
        found = outcomes(case, thresholds, repeats, seed=2)
        print(f"{name}: " + ", ".join(f"{word} {100 * count / repeats:.1f} %" for word, count in found.items()))
    source = np.random.default_rng(3)
    drawn = [accuracy_change(*ACCURACY, source) for _ in range(repeats)]
    change, low, high = np.mean(np.asarray(drawn), axis=0)
    covers = sum(low <= 0 <= high for _, low, high in drawn) / repeats
    print(f"task accuracy of the fault: mean {change:+.1f} points [{low:+.1f}, {high:+.1f}];", end=" ")
    print(f"the interval covers zero in {100 * covers:.0f} % of the experiments")


def main() -> None:
    """Print the tables on stdout."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    thresholds = load_thresholds()
    _print_grid(thresholds, repeats)
    _print_paper(thresholds, repeats)


if __name__ == "__main__":
    main()
