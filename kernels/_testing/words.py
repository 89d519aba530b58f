"""The command line of the comparisons: one word of a few, with help and a named error for anything else."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def parser_of(doc: str | None, choices: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of the word `plan`; `doc` is the module's docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan", choices=choices)
    return parser


def word(doc: str | None, choices: Sequence[str]) -> str:
    """The word that was given; exit 2 where it is none of `choices`, exit 0 with the help for `--help`."""
    found: str = parser_of(doc, choices).parse_args().plan
    return found
