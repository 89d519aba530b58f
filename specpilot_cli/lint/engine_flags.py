"""Checks on the engine's flags."""

from __future__ import annotations

import json
from collections.abc import Iterator

from specpilot_cli.lint.finding import Finding, some
from specpilot_cli.lint.pair import DEFAULT_DFLASH_BLOCK, DEFAULT_DSPARK_BLOCK, Pair, as_int

HOOK = "arg_groups/speculative_hook.py"
TOKENS, DFLASH_BLOCK = "--speculative-num-draft-tokens", "--speculative-dflash-block-size"
DSPARK_BLOCK, TOPK = "--speculative-dspark-block-size", "--speculative-eagle-topk"
STEPS = "--speculative-num-steps"
DEFAULT_RUNNING = 48
"""max_running_requests of DFLASH and DSPARK where it is not given (`arg_groups/speculative_hook.py:335`)."""
TREE_PAGES = ("flashinfer", "fa3", "triton")
ALGORITHM = {"DFLASH": "DFLASH", "DFLASH2": "DFLASH", "DSPARK": "DSPARK", "EAGLE3": "EAGLE3"}


def algorithm(pair: Pair) -> Iterator[Finding]:
    """The algorithm that is asked for against the one that the drafter is made for."""
    wanted = ALGORITHM.get(pair.kind or "")
    if pair.algorithm is None or wanted is None or pair.algorithm == wanted:
        return
    why = "The engine builds another drafter than the checkpoint is."
    if (pair.algorithm, wanted) == ("EAGLE", "EAGLE3"):
        why = (
            "EAGLE captures no auxiliary layers: the server runs at accept length 1.0 without a word (sglang PR 21272)."
        )
    yield Finding(
        "algorithm",
        f"--speculative-algorithm {pair.algorithm} with a {pair.kind} drafter.",
        why,
        f"Use --speculative-algorithm {wanted}.",
        "speculative/spec_info.py:227",
    )


def block(pair: Pair) -> Iterator[Finding]:
    """DFLASH counts the anchor in its block, DSPARK does not."""
    if pair.kind in ("DFLASH", "DFLASH2"):
        yield from _dflash_block(pair)
    elif pair.kind == "DSPARK":
        yield from _dspark_block(pair)
    elif pair.number(TOPK) == 1:
        yield from _eagle_chain(pair)


def _dflash_block(pair: Pair) -> Iterator[Finding]:
    trained = as_int(pair.nested("block_size")) or DEFAULT_DFLASH_BLOCK
    given = {flag: pair.number(flag) for flag in (TOKENS, DFLASH_BLOCK)}
    known = {flag: size for flag, size in given.items() if size is not None}
    if len(set(known.values())) > 1:
        yield _block(
            f"{TOKENS} {known[TOKENS]} and {DFLASH_BLOCK} {known[DFLASH_BLOCK]}.", "Both are the block.", trained
        )
        return
    for flag, size in known.items():
        if size == trained:
            continue
        why = "The drafter then fills another block than it was trained on, and every position's prediction changes."
        if size == trained - 1:
            why = f"That is γ, the number of drafts: DFLASH counts the anchor too, block = γ + 1 = {trained}."
        yield _block(f"{flag} {size}, the drafter's block_size is {trained}.", why, trained)


def _block(fact: str, why: str, trained: int) -> Finding:
    return Finding("block", fact, why, f"Give {TOKENS} {trained}, or none.", f"{HOOK}:265-322")


def _dspark_block(pair: Pair) -> Iterator[Finding]:
    trained = as_int(pair.nested("block_size")) or DEFAULT_DSPARK_BLOCK
    gamma, tokens = pair.number(DSPARK_BLOCK), pair.number(TOKENS)
    if gamma is not None and gamma != trained:
        why = "The drafter then fills another block than it was trained on."
        if gamma == trained + 1:
            why = f"DSPARK's block is γ, without the anchor: {trained}."
        yield Finding(
            "block", f"{DSPARK_BLOCK} {gamma}, the drafter's block_size is {trained}.", why,
            f"Give {DSPARK_BLOCK} {trained}, or none.", f"{HOOK}:519-719",
        )  # fmt: skip
    rows = (gamma or trained) + 1
    if tokens is not None and tokens != rows:
        yield Finding(
            "block", f"{TOKENS} {tokens}, but DSPARK verifies γ + 1 = {rows} rows.", "The engine refuses to start.",
            f"Give {TOKENS} {rows}, or none.", f"{HOOK}:519-719",
        )  # fmt: skip


def _eagle_chain(pair: Pair) -> Iterator[Finding]:
    steps, tokens = pair.number(STEPS), pair.number(TOKENS)
    if steps is not None and tokens is not None and tokens != steps + 1:
        yield Finding(
            "block", f"{STEPS} {steps} with {TOKENS} {tokens} and topk 1.", f"A chain has {steps + 1} rows.",
            f"Give {TOKENS} {steps + 1}.", f"{HOOK}:969",
        )  # fmt: skip


def quantization(pair: Pair) -> Iterator[Finding]:
    """The drafter inherits the target's --quantization."""
    given = pair.value("--quantization")
    own = pair.given("--speculative-draft-model-quantization") or "quantization_config" in pair.drafter.config
    if given and given != "unquant" and not own:
        yield Finding(
            "quantization",
            f"--quantization {given} and nothing for the drafter.",
            "The drafter is quantised as well, which costs acceptance.",
            "Add --speculative-draft-model-quantization unquant.",
            "arg_groups/serving_hook.py:619-651",
        )


def trees(pair: Pair) -> Iterator[Finding]:
    """Branching, page size and backend."""
    topk, page = pair.number(TOPK) or 1, pair.number("--page-size") or 1
    if topk > 1 and pair.parallel:
        yield Finding(
            "topk", f"{TOPK} {topk} with a {pair.kind} drafter.", "It is set to 1: stock verifies a chain.",
            f"Drop {TOPK}.", f"{HOOK}:231-263",
        )  # fmt: skip
    if topk <= 1 or page <= 1 or pair.parallel:
        return
    backend = pair.value("--attention-backend")
    if backend and backend not in TREE_PAGES:
        yield Finding(
            "page-size", f"{TOPK} {topk} and --page-size {page} on {backend}.", "Trees over pages need another one.",
            f"Take one of {', '.join(TREE_PAGES)}, or --page-size 1.", f"{HOOK}:985",
        )  # fmt: skip
    if backend == "fa3" and pair.target.text.get("sliding_window"):
        yield Finding(
            "page-size", f"{TOPK} {topk} and --page-size {page} on fa3 with sliding windows.", "It raises at run time.",
            "Use --page-size 1.", "layers/attention/flashattention_backend.py:3347",
        )  # fmt: skip


def graphs(pair: Pair) -> Iterator[Finding]:
    """Batches beyond the largest captured graph run eagerly."""
    largest = pair.number("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs")
    running = pair.number("--max-running-requests") or (DEFAULT_RUNNING if pair.parallel else None)
    if largest is not None and running is not None and largest < running:
        yield Finding(
            "graphs",
            f"CUDA graphs end at batch {largest}, {running} requests may run.",
            "Larger batches decode eagerly: every kernel is launched by the host.",
            f"Give --cuda-graph-max-bs-decode {running}, or --max-running-requests {largest}.",
            "model_executor/runner/decode_cuda_graph_runner.py:635",
        )


def overrides(pair: Pair) -> Iterator[Finding]:
    """--json-model-override-args reaches the drafter's config too."""
    text = pair.value("--json-model-override-args")
    if not text or not pair.parallel:
        return
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    keys = sorted(found) if isinstance(found, dict) else []
    changed = [key for key in keys if key in pair.drafter.config and pair.drafter.config[key] != found[key]]
    if changed or found is None:
        yield Finding(
            "override-args",
            f"--json-model-override-args sets {some(changed)}."
            if changed
            else "--json-model-override-args is not JSON.",
            "It is applied to the drafter's config as well.",
            "Write the change into the target's config.json instead.",
            f"{HOOK}:291",
        )
