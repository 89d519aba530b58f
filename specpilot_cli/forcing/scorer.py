"""The scorer: the stock target, decoding without speculation, with an FP32 LM head."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_cli.artifacts.deployment import ServerRecord
from specpilot_cli.artifacts.pair_run import PairRunBody
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable
from specpilot_cli.core.paths import cache_dir
from specpilot_cli.engine.base import Server, TokenScore
from specpilot_cli.engine.registry import adapter
from specpilot_cli.worktrees.git import base_tree, tree_id

SAME_TARGET = ("model_digest", "model_path", "dtype", "quantization")
FP32_HEAD = ("fp32_lm_head", "enable_fp32_lm_head")
QUANTISED_KV = ("fp8", "fp4", "int8", "int4", "e4m3", "e5m2")


@dataclass(frozen=True)
class Scorer:
    """A running scorer and what it says of itself."""

    server: Server
    record: ServerRecord
    compute_dtype: str
    kv_cache_dtype: str

    def score(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> list[TokenScore]:
        """Teacher-force `output`; one entry per token.

        Raises:
            ExternalFailed: the engine failed, or did not score these tokens.
        """
        scores = self.server.score(prompt, output) if output else []
        if tuple(score.token for score in scores) != output:
            raise ExternalFailed("The scorer scored other tokens than it was given.")
        return scores

    def stops_after(self, prompt: tuple[int, ...], output: tuple[int, ...]) -> bool:
        """Whether the scorer, decoding on its own, would end the request with `output`'s last token."""
        if not output:
            return False
        found = self.server.generate([(*prompt, *output[:-1])], 2)[0]
        return found.output_ids == output[-1:] and found.finish_reason == "stop"


def check_tree(worktree: Path, pair: PairRunBody) -> str:
    """The worktree's tree id, which must be the stock tree that the pair-run measured.

    Raises:
        InputUnusable: it is another tree, or the pair-run's stock arm was not stock.
    """
    tree = tree_id(worktree)
    if pair.stock.tree != pair.stock.base_tree:
        raise InputUnusable(
            "The pair-run's stock arm is not the stock tree.", f"{pair.stock.tree} is not {pair.stock.base_tree}."
        )
    if tree != pair.stock.base_tree:
        raise InputUnusable(
            f"{worktree}: not the stock tree of the pair-run.",
            f"Its tree is {tree}, the pair-run's stock is {pair.stock.base_tree}.",
            "Give the worktree that was the pair-run's first argument.",
        )
    return tree


def check_info(info: dict[str, Any], stock: dict[str, Any]) -> tuple[str, str]:
    """(compute dtype, KV-cache dtype) of a scorer that may score.

    Args:
        info: the scorer's `/server_info`. stock: that of the pair-run's stock arm.
    Raises:
        EnvironmentUnusable: speculation is on, the LM head is not FP32, or the KV cache is quantised or unknown.
        InputUnusable: it serves another target than the pair-run's stock arm.
    """
    if info.get("speculative_algorithm"):
        raise EnvironmentUnusable("The scorer speculates.", f"speculative_algorithm = {info['speculative_algorithm']}.")
    if not any(info.get(name) is True for name in FP32_HEAD):
        raise EnvironmentUnusable("The scorer's LM head is not FP32.", f"None of {', '.join(FP32_HEAD)} is true.")
    dtype = str(info.get("dtype", ""))
    cache = str(info.get("kv_cache_dtype", dtype))  # an engine without the option keeps K and V in its compute dtype
    if not cache:
        raise EnvironmentUnusable("The scorer does not say what its KV cache holds.", "No kv_cache_dtype, no dtype.")
    if any(word in cache.lower() for word in QUANTISED_KV):
        raise EnvironmentUnusable(
            f"The scorer's KV cache is {cache}.",
            "Prefill and decode kernels then read different numbers, and margins are not stock's (sglang issue 25790).",
            "Score with a bfloat16 KV cache: --kv-cache-dtype bfloat16.",
        )
    for name in SAME_TARGET:
        if name in info and name in stock and info[name] != stock[name]:
            raise InputUnusable(
                f"The scorer serves another target: {name} differs.", f"{info[name]} is not {stock[name]}."
            )
    return dtype, cache


@contextmanager
def running_scorer(worktree: Path, pair: PairRunBody) -> Iterator[Scorer]:
    """Start the scorer of a pair-run's deployment; stop it in the end.

    Args:
        worktree: stock (see `check_tree`).
    """
    log = cache_dir() / "logs" / f"scorer-{os.getpid()}.log"
    tree = check_tree(worktree, pair)
    engine = adapter(pair.deployment.engine)
    server = engine.launch(worktree, engine.scorer_args((*pair.deployment.server_args, *pair.server_args)), log=log)
    try:
        info = server.info()
        dtype, cache = check_info(info, dict(pair.stock.info))
        record = ServerRecord(tree=tree, base_tree=base_tree(worktree), argv=server.argv, info=info)
        yield Scorer(server, record, dtype, cache)
    finally:
        server.close()
