"""What requests of a paired run that ran alone spent in steps, and what besides: prompt, HTTP, first token.

    python examples/tree/per_step.py pair-1.json pair-2.json      # artifacts of `specpilot pair-run`, or .json.xz

An artifact holds each request's time, tokens and verify steps, not when its first token came. For each arm, over all
samples at one request at a time: least squares of a request's milliseconds on its verify steps. The slope is a step,
the rest is what does not depend on how long the answer is; +- is the fit's standard error, too small where runs repeat
the same requests. Then tokens over all of the time and over that of steps alone, as candidate / stock (sums, where
`pair-run` has the mean of ratios).
"""

from __future__ import annotations

import argparse
import lzma
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1])]

import numpy as np  # noqa: E402

from specpilot_cli.artifacts.pair_run import PairRunArtifact, Sample  # noqa: E402


class Alone(NamedTuple):
    """One arm at one request at a time. Times in ms; a value and its standard error."""

    requests: int
    tokens: int
    steps: int
    tau: float
    step: tuple[float, float]
    rest: tuple[float, float]
    wall_ms: float

    @property
    def stepping_ms(self) -> float:
        """Time of all steps by the fit."""
        return self.steps * self.step[0]


def read(path: Path) -> tuple[Sample, ...]:
    """Samples of an artifact at one request at a time."""
    data = path.read_bytes()
    body = PairRunArtifact.model_validate_json(lzma.decompress(data) if path.suffix == ".xz" else data).body
    return tuple(sample for sample in body.samples if sample.concurrency == 1)


def fitted(samples: Sequence[Sample], arm: str) -> Alone:
    """One arm's fit.

    Raises:
        SystemExit: fewer than three samples, or one whose engine counts no verify steps.
    """
    mine = [sample for sample in samples if sample.arm == arm]
    if len(mine) < 3 or not all(sample.verify_steps for sample in mine):
        raise SystemExit(f"{arm}: three requests with verify steps are needed, one at a time.")
    steps = np.array([sample.verify_steps for sample in mine], dtype=float)
    wall = np.array([sample.wall_s * 1e3 for sample in mine])
    design = np.stack([np.ones_like(steps), steps], axis=1)
    (rest, step), *_ = np.linalg.lstsq(design, wall, rcond=None)
    variance = np.square(wall - design @ (rest, step)).sum() / (len(mine) - 2)
    errors = np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design)))
    tau = 1 + sum(sample.correct_drafts or 0 for sample in mine) / float(steps.sum())
    tokens = sum(sample.completion_tokens for sample in mine)
    return Alone(
        len(mine), tokens, int(steps.sum()), tau, (float(step), float(errors[1])), (float(rest), float(errors[0])),
        float(wall.sum()),
    )  # fmt: skip


def lines_of(stock: Alone, candidate: Alone) -> list[str]:
    """Both arms, and the two ratios."""
    lines = [
        f"{name}: {a.requests} requests, tau {a.tau:.3f}; a step {a.step[0]:.2f} +- {a.step[1]:.2f} ms, "
        f"besides {a.rest[0]:.0f} +- {a.rest[1]:.0f} ms a request"
        for name, a in (("stock", stock), ("candidate", candidate))
    ]
    tokens = candidate.tokens / stock.tokens
    whole, steps = stock.wall_ms / candidate.wall_ms, stock.stepping_ms / candidate.stepping_ms
    return [*lines, f"candidate / stock: {tokens * whole:.3f} with all of it, {tokens * steps:.3f} in steps alone"]


def main() -> None:
    """All given artifacts together."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="+", type=Path)
    samples = [sample for path in parser.parse_args().artifacts for sample in read(path)]
    print("\n".join(lines_of(fitted(samples, "stock"), fitted(samples, "candidate"))))


if __name__ == "__main__":
    main()
