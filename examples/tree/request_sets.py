"""Request files for the gate at large batches: benchmarks in several framings, or rows of token ids.

    python examples/tree/request_sets.py framed gsm8k humaneval mbpp mtbench --tokenizer DIR --local DIR -o FILE.jsonl
    python examples/tree/request_sets.py ids ROWS.json -o FILE.jsonl [--name held] [--new-tokens 192]

An interval needs eight batches of every size: 169 requests for batches of 24, in either split. `framed` asks each
prompt in the ways of `FRAMINGS`; whichever way, a prompt is in the split that it is in alone, so nothing sealed is
seen while developing. Framings of one prompt are not independent requests: read an interval over them as one over
these prompts. `ids` takes rows without a text (lists of ids, or such lists by name); there the split follows the ids.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "testbed"), str(HERE.parents[1])]

from framings import FRAMINGS  # noqa: E402
from requests_file import benchmark_options, mixed, prompts_of, written  # noqa: E402

from specpilot_cli.core.digest import sha256_bytes  # noqa: E402
from specpilot_cli.core.errors import InputUnusable  # noqa: E402
from specpilot_cli.deployment import Request  # noqa: E402
from specpilot_cli.testbed.benchmarks import Benchmark, Prompt, requests_of  # noqa: E402
from specpilot_cli.testbed.chat import chat_encoder  # noqa: E402


def framed(
    benchmark: Benchmark, prompts: Iterable[Prompt], encode: Callable[[str], list[int]], name: str
) -> list[Request]:
    """Every prompt in every framing, as requests of the benchmark `name`; splits are those of the plain prompts."""
    found = []
    for plain, prompt in zip(requests_of(benchmark, prompts := tuple(prompts), encode), prompts, strict=True):
        for label, form in FRAMINGS.items():
            text = form.format(prompt.prompt)
            change = {"id": f"{plain.id}-{label}", "prompt": text, "input_ids": tuple(encode(text))} if label else {}
            found.append(plain.model_copy(update={"benchmark": name, **change}))
    return found


def of_ids(rows: Iterable[list[int]], name: str, new_tokens: int) -> list[Request]:
    """A request a row. "sealed" where the first byte of sha256 over the ids, in decimal with commas, is odd.

    Raises:
        InputUnusable: a row is empty, or there twice.
    """
    found: dict[str, Request] = {}
    for number, row in enumerate(rows):
        digest = sha256_bytes(",".join(map(str, row)).encode())
        if not row or digest in found:
            raise InputUnusable(f"Row {number} is {'there twice' if row else 'empty'}.")
        found[digest] = Request(
            id=f"{name}-{number:04d}", split="sealed" if int(digest[:2], 16) & 1 else "develop", prompt="",
            input_ids=tuple(row), max_new_tokens=new_tokens, benchmark=name, source=f"rows of ids, {name}",
        )  # fmt: skip
    return list(found.values())


def rows_of(path: Path) -> list[list[int]]:
    """Rows of token ids of a JSON file, whether they have names or not."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows: list[list[int]] = [row for part in found.values() for row in part] if isinstance(found, dict) else found
    return rows


def of_benchmarks(options: argparse.Namespace) -> list[Request]:
    """Those of `framed` for every benchmark that is named."""
    encode, name = chat_encoder(options.tokenizer), options.out.stem
    return mixed(r for benchmark, prompts in prompts_of(options) for r in framed(benchmark, prompts, encode, name))


def main() -> int:
    """Make, write, and say how many there are of each split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    one = kinds.add_parser("framed")
    benchmark_options(one)
    one.set_defaults(make=of_benchmarks)
    two = kinds.add_parser("ids")
    two.add_argument("rows", type=Path)
    two.add_argument("--name", default="held")
    two.add_argument("--new-tokens", type=int, default=192)
    two.set_defaults(make=lambda options: of_ids(rows_of(options.rows), options.name, options.new_tokens))
    for kind in (one, two):
        kind.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    return written(options.make, options)


if __name__ == "__main__":
    sys.exit(main())
