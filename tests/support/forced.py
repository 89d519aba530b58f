"""Pair-runs with chosen outputs, and a scorer in this process, for the tests of forcing and sealing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.samples import SHA, TREE, deployment, fields

from specpilot_cli.artifacts.deployment import RequestSetRecord, ServerRecord
from specpilot_cli.artifacts.pair_run import Arm, Design, Output, PairRunArtifact, PairRunBody, Sample
from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.base import Generation, TokenScore
from specpilot_cli.forcing.outputs import output_digest

PROMPT = (5, 6, 7)
CANDIDATE_TREE = "2" * 40
Scores = Callable[[int, int], tuple[float, float]]
"""(position, token) -> (log p of token 0's choice, log p of the token)."""


def server_record(tree: str = TREE, **info: Any) -> ServerRecord:
    """What a server said of itself."""
    return ServerRecord(tree=tree, base_tree=TREE, argv=("python",), info={"dtype": "float32", **info})


def outputs(candidate: Mapping[str, Sequence[int]], stock: Mapping[str, Sequence[int]]) -> tuple[Output, ...]:
    """Outputs of both arms, all to the same prompt."""
    arms: list[tuple[Arm, Mapping[str, Sequence[int]]]] = [("candidate", candidate), ("stock", stock)]
    return tuple(
        Output(arm=arm, request_id=name, input_ids=PROMPT, output_ids=tuple(tokens))
        for arm, mine in arms
        for name, tokens in mine.items()
    )


def sample(arm: Arm, name: str, output: Sequence[int], wall_s: float = 1.0) -> Sample:
    """One timed request."""
    return Sample(
        block=0, repeat=0, arm=arm, request_id=name, benchmark="b", concurrency=1, batch=0, started_s=0.0,
        wall_s=wall_s, completion_tokens=len(output), verify_steps=len(output), correct_drafts=0,
        output_sha256=output_digest(output), foreign_cpu=None, wait_share=None, contaminated=False,
    )  # fmt: skip


def pair_body(
    candidate: Mapping[str, Sequence[int]], stock: Mapping[str, Sequence[int]] | None = None, /, **changes: Any
) -> PairRunBody:
    """A pair-run of the requests in `candidate`; stock gives the same outputs unless told otherwise."""
    stock = candidate if stock is None else stock
    values: dict[str, Any] = {
        "deployment": deployment(),
        "requests": RequestSetRecord(name="set", sha256=SHA, split="sealed", ids=tuple(candidate)),
        "design": Design(
            order=("stock", "candidate"), repeats=1, placement="resident", warmup_requests=0, cooldown_s=0, seed=0
        ),
        "purpose": "gain",
        "stock": server_record(),
        "candidate": server_record(CANDIDATE_TREE),
        "vary": (),
        "server_args": (),
        "boot": "boot",
        "outputs": outputs(candidate, stock),
    }
    return PairRunBody(**{**values, **changes})


def pair_artifact(body: PairRunBody, **changes: Any) -> PairRunArtifact:
    """The body in its envelope."""
    return PairRunArtifact(**fields(**changes), body=body)


def token_score(token: int, argmax: int = 1, margin: float = 0.0, **changes: Any) -> TokenScore:
    """A score with a given margin; the argmax has log p = -0.1."""
    plain = TokenScore(
        token, -0.1 - margin, argmax, -0.1, 20.0, 20.0 - margin, ((argmax, -0.1), (token, -0.1 - margin))
    )
    return dataclasses.replace(plain, **changes)


class FakeServer:
    """A scorer whose argmax is always token 1; every other token has the margin that `margin` gives it."""

    argv = ("fake",)

    def __init__(self, margin: Callable[[int], float] = lambda token: 1.0, *, eos: int = -1, fail_after: int = -1):
        self.margin, self.eos, self.fail_after, self.scored = margin, eos, fail_after, 0

    def info(self) -> dict[str, Any]:
        """A scorer as it should be."""
        return {"dtype": "float32", "fp32_lm_head": True}

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """One entry per token."""
        if self.scored == self.fail_after:
            raise ExternalFailed("POST /generate failed.", "The engine died: planned")
        self.scored += 1
        return [token_score(t, margin=0.0 if t == 1 else self.margin(t)) for t in output]

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, ignore_eos: bool = False, lattice: bool = False
    ) -> list[Generation]:
        """Ends with the end-of-sequence token at once where there is one, else gives token 1."""
        if self.eos >= 0:
            return [Generation((self.eos,), 0.0, 0, 0, "stop")]
        return [Generation((1,) * max_new_tokens, 0.0, 0, 0, "length")]

    def flush(self) -> None:
        """Nothing to drop."""

    def alive(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to stop."""
