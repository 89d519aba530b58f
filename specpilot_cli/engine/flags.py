"""Engine flags are passed through verbatim; the few edits that stages need are here."""

from __future__ import annotations

from collections.abc import Sequence


def without(args: Sequence[str], prefix: str) -> tuple[str, ...]:
    """`args` less every flag that starts with `prefix`, and its values (`--flag value`, `--flag=value`)."""
    kept: list[str] = []
    dropping = False
    for arg in args:
        if arg.startswith("--"):
            dropping = arg.startswith(prefix)
        if not dropping:
            kept.append(arg)
    return tuple(kept)


def autoregressive(args: Sequence[str]) -> tuple[str, ...]:
    """The same deployment without speculation (SGLang's and the miniengine's `--speculative-…` flags dropped)."""
    return without(args, "--speculative-")
