"""The servers of a selftest, and one pair-run and one token forcing on them: the real functions of both gates."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from specpilot_cli.artifacts.deployment import DeploymentRecord, RequestSetRecord, ServerRecord
from specpilot_cli.artifacts.forcing import ForcingBody
from specpilot_cli.artifacts.pair_run import Arm, Design, FreshPrompt, PairRunBody
from specpilot_cli.controller.compare import boot_id
from specpilot_cli.controller.design import parse_order
from specpilot_cli.controller.fresh import fresh_prompts
from specpilot_cli.controller.run import PairRun
from specpilot_cli.controller.sides import Side, edited
from specpilot_cli.core.digest import harness_sha256, sha256_bytes
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.deployment import Request, RequestSet
from specpilot_cli.engine.base import Generation, Server, TokenScore
from specpilot_cli.engine.registry import adapter
from specpilot_cli.forcing import delta
from specpilot_cli.forcing.run import force, start_body
from specpilot_cli.forcing.scorer import Scorer, check_info
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.worktrees.git import base_tree, tree_id

NOISE_TRIES = 3


class Kept:
    """A server that a pair-run may close as often as it likes: it stays up until `stop`."""

    def __init__(self, server: Server) -> None:
        self._server, self.argv = server, server.argv
        self.pid: int | None = getattr(server, "pid", None)

    def info(self) -> dict[str, Any]:
        """See `engine.base.Server`."""
        return self._server.info()

    def generate(
        self, prompts: Sequence[Sequence[int]], max_new_tokens: int, *, ignore_eos: bool = False, lattice: bool = False
    ) -> list[Generation]:
        """See `engine.base.Server`."""
        return self._server.generate(prompts, max_new_tokens, ignore_eos=ignore_eos, lattice=lattice)

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """See `engine.base.Server`."""
        return self._server.score(prompt, output)

    def flush(self) -> None:
        """See `engine.base.Server`."""
        self._server.flush()

    def alive(self) -> bool:
        """See `engine.base.Server`."""
        return self._server.alive()

    def close(self) -> None:
        """Nothing: see the class."""

    def let_go(self) -> None:
        """Go on where a planted system has paused the process."""
        if self.pid is not None and self.alive():
            os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End the process tree."""
        self.let_go()
        self._server.close()


Role = Literal["stock", "scorer", "candidate"]


@dataclass
class Bench:
    """One stock worktree, one candidate at a time, and the scorer. Use it from one thread."""

    stock: Path
    deployment: DeploymentRecord
    pool: RequestSet
    name: str = "selftest"
    noise: float = 0.0
    _servers: dict[Role, tuple[Path, Kept]] = field(default_factory=dict)

    def server(self, role: Role, worktree: Path) -> Kept:
        """The running server of a role; a new one where it has died or another worktree is asked for."""
        if role in self._servers and (self._servers[role][0] != worktree or not self._servers[role][1].alive()):
            self._servers.pop(role)[1].stop()
            for _, other in self._servers.values():  # what a candidate paused while it was ended stays paused
                other.let_go()
        if role not in self._servers:
            engine, args = adapter(self.deployment.engine), self.deployment.server_args
            flags = engine.scorer_args(args) if role == "scorer" else args
            log = cache_dir() / "logs" / f"{self.name}-{os.getpid()}-{role}.log"
            self._servers[role] = worktree, Kept(engine.launch(worktree, flags, log=log))
        return self._servers[role][1]

    def close(self) -> None:
        """Stop everything."""
        while self._servers:
            self._servers.popitem()[1][1].stop()

    def draw_fresh(self, requests: Sequence[Request], count: int) -> tuple[FreshPrompt, ...]:
        """Fresh prompts of one pair-run."""
        return fresh_prompts(requests, count)

    def pair_run(
        self,
        candidate: Path,
        requests: Sequence[Request],
        *,
        order: str,
        seed: int,
        fresh: int = 0,
        vary: tuple[str, ...] = (),
        purpose: Literal["gain", "noise"] = "gain",
    ) -> PairRunBody:
        """A pair-run of `candidate` against stock, complete with its verdict. Its servers stay up."""
        sides = {"stock": self._side(self.stock), "candidate": self._side(candidate)}
        start = PairRunBody(
            deployment=self.deployment,
            requests=self.record(requests),
            design=design(order, seed, fresh),
            purpose=purpose,
            stock=sides["stock"].record(),
            candidate=sides["candidate"].record(),
            vary=vary,
            server_args=(),
            boot=boot_id(),
            noise=None if purpose == "noise" else self.noise,
            fresh=self.draw_fresh(requests, fresh),
        )

        def launch(arm: Arm) -> Server:
            return self.server(arm, sides[arm].worktree)

        run = PairRun(start, requests, launch, save=lambda body: None)
        return run.run(lambda: edited(cast("dict[Arm, Side]", sides), harness_sha256()))[0]

    def record(self, requests: Sequence[Request]) -> RequestSetRecord:
        """The request set, less what was not drawn."""
        return self.pool.record.model_copy(update={"ids": tuple(r.id for r in requests)})

    def _side(self, worktree: Path) -> Side:
        return Side(worktree, tree_id(worktree), base_tree(worktree), self.deployment.server_args)

    def measure_noise(self, requests: Sequence[Request]) -> bool:
        """Stock against stock, kept in `noise`. False: the machine was disturbed in every try."""
        for seed in range(NOISE_TRIES):
            body = self.pair_run(self.stock, requests, order="ABBA", seed=seed, purpose="noise")
            self.noise = body.noise if body.noise is not None else self.noise
            if body.verdict is None:
                return True
        return False

    def force(self, pair: PairRunBody) -> ForcingBody:
        """Token forcing of a pair-run's outputs."""
        server, thresholds = self.server("scorer", self.stock), load_thresholds()
        info = server.info()
        dtype, cache = check_info(info, dict(pair.stock.info))
        tree = tree_id(self.stock)
        record = ServerRecord(tree=tree, base_tree=base_tree(self.stock), argv=server.argv, info=info)
        scorer = Scorer(server, record, dtype, cache)
        body = start_body(scorer, delta.by_default(thresholds), sha256_bytes(pair.model_dump_json().encode()))
        return force(scorer, pair, body, thresholds, lambda unfinished: None)


def design(order: str, seed: int, fresh: int) -> Design:
    """The design of every repeat."""
    return Design(
        order=parse_order(order),
        repeats=1,
        placement="resident",
        warmup_requests=1,
        cooldown_s=0.0,
        fresh_prompts=fresh,
        seed=seed,
    )
