"""How the two sides alternate: the order of the arms, pairs of blocks, and the mirror that cancels position effects."""

from __future__ import annotations

from specpilot_cli.artifacts.pair_run import Arm
from specpilot_cli.core.errors import UsageFault

LETTERS: dict[str, Arm] = {"A": "stock", "B": "candidate"}
OTHER: dict[Arm, Arm] = {"stock": "candidate", "candidate": "stock"}


def parse_order(text: str) -> tuple[Arm, ...]:
    """`ABBA` as arms. Every two consecutive blocks are a pair, so each pair must hold both arms.

    Raises:
        UsageFault: other letters, an odd length, or a pair of one arm.
    """
    letters = text.upper()
    pairs = [letters[at : at + 2] for at in range(0, len(letters), 2)]
    if not pairs or any(sorted(pair) != ["A", "B"] for pair in pairs):
        raise UsageFault(
            f"'{text}' is not an order of A and B in pairs.",
            "Blocks 1 and 2, 3 and 4, … are compared with each other.",
            "Use ABBA (drift cancels) or AB.",
        )
    return tuple(LETTERS[letter] for letter in letters)


def spell(order: tuple[Arm, ...]) -> str:
    """The order as letters."""
    return "".join("A" if arm == "stock" else "B" for arm in order)


def mirrored(order: tuple[Arm, ...]) -> tuple[Arm, ...]:
    """The order with the arms exchanged.

    In A B B A a linear drift cancels, but A always has the first position, where a cold cache costs most. Run on every
    second batch, the mirror gives both arms every position equally often.
    """
    return tuple(OTHER[arm] for arm in order)
