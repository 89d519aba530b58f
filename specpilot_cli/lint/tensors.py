"""Checks on tensor names and shapes: the drafter's loader skips unknown names and never asks for missing ones."""

from __future__ import annotations

from collections.abc import Iterator

from specpilot_cli.lint.expected import DOMINO, FUSED, OPTIONAL, UNUSED, canonical, expected
from specpilot_cli.lint.finding import Finding, some
from specpilot_cli.lint.pair import Pair, Tensor

LOADER = "models/dflash.py:767-880"
DSPARK_LOADER = "models/dspark.py:550"


def names(pair: Pair) -> Iterator[Finding]:
    """Missing and unknown tensors of the drafter."""
    wanted, present = expected(pair), _present(pair)
    if not wanted or present is None:
        return
    source = DSPARK_LOADER if pair.kind == "DSPARK" else LOADER
    missing = sorted(set(wanted) - _covered(set(present)))
    unknown = sorted(name for name in present if not _known(name, wanted))
    if missing:
        yield Finding(
            "missing-tensor",
            f"The drafter has no {some(missing)}.",
            "The loader does not check that every tensor came: they keep their initial values and acceptance is lost.",
            "Export the drafter again, or rename the tensors.",
            source,
        )
    if unknown:
        yield Finding(
            "unknown-tensor",
            f"No part of the drafter is called {some(unknown)}.",
            "Unknown names are skipped without a word, so these weights are never used.",
            "Rename them to what the loader expects" + (f" (missing: {missing[0]})." if missing else "."),
            source,
        )


def shapes(pair: Pair) -> Iterator[Finding]:
    """Tensors whose shape is not the one that the drafter's own config gives."""
    present = _present(pair) or {}
    wrong = []
    for name, shape in expected(pair).items():
        tensor = present.get(name)
        if tensor is not None and shape is not None and tensor.shape != shape:
            wrong.append(f"{name} {list(tensor.shape)} for {list(shape)}")
    if wrong:
        yield Finding(
            "tensor-shape",
            f"Shapes differ from the drafter's config.json: {some(wrong)}.",
            "Config and weights are of different models.",
            "Take the config.json that was saved with these weights.",
            LOADER,
        )


def absent(pair: Pair) -> Iterator[Finding]:
    """Tensors that an index lists and no file has."""
    for checkpoint in (pair.target, pair.drafter):
        if checkpoint.absent:
            yield Finding(
                "missing-shard",
                f"{checkpoint.name} lists {some(list(checkpoint.absent))} in its index, and no file has them.",
                "A shard is missing.",
                "Download the model again.",
                "model_loader/weight_utils.py",
            )


def embedding(pair: Pair) -> Iterator[Finding]:
    """The target's embedding, which the drafter uses, against its config."""
    hidden, vocab = pair.target.whole("hidden_size"), pair.target.whole("vocab_size")
    for name, tensor in (pair.target.tensors or {}).items():
        if not name.endswith("embed_tokens.weight") or len(tensor.shape) != 2 or "visual" in name:
            continue
        rows, width = tensor.shape
        if (hidden and width != hidden) or (vocab and rows < vocab):
            yield Finding(
                "target-embedding",
                f"{name} is {rows}×{width}, the target's config says {vocab}×{hidden}.",
                "Config and weights are of different models; the drafter reads this table.",
                "Take the config.json that belongs to the weights.",
                "speculative/dflash_worker_v2.py:2420",
            )


def _present(pair: Pair) -> dict[str, Tensor] | None:
    if pair.drafter.tensors is None:
        return None
    return {canonical(name): tensor for name, tensor in pair.drafter.tensors.items()}


def _covered(present: set[str]) -> set[str]:
    """The present names, and those that a fused tensor stands for."""
    found = set(present)
    for name in present:
        for fused, parts in FUSED.items():
            if f".{fused}." in name:
                found |= {name.replace(fused, part) for part in parts}
    return found


def _known(name: str, wanted: dict[str, tuple[int, ...] | None]) -> bool:
    fused = any(f".{part}." in name for part in FUSED) and bool(_covered({name}) & set(wanted))
    ours = name in wanted or name in OPTIONAL or name.startswith(DOMINO)
    return ours or fused or any(part in name for part in UNUSED)
