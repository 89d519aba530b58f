"""Benchmarks of `profiles/requests/` as a request file (token ids through a checkpoint's chat template).

    python examples/testbed/requests_file.py gsm8k --tokenizer smollm2 [--local FOLDER] [--limit N] -o gsm8k.jsonl
    python examples/testbed/requests_file.py gsm8k mbpp humaneval mtbench --together ...      # batches may mix them

A paired run never mixes two benchmarks in a batch, and each needs eight batches of every size; `--together` makes one
of several that are small.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.deployment import Request
from specpilot_cli.testbed.benchmarks import (
    BENCHMARKS,
    Benchmark,
    Prompt,
    load_benchmark,
    read_hub,
    read_local,
    requests_of,
    write_requests,
)
from specpilot_cli.testbed.chat import chat_encoder


def benchmark_options(parser: argparse.ArgumentParser) -> None:
    """Which benchmarks, from where, rendered for which checkpoint."""
    parser.add_argument("names", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--tokenizer", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--local", type=Path, help="folder with the local draw; without it the hub is read")
    parser.add_argument("--limit", type=int, help="prompts of each")


def prompts_of(options: argparse.Namespace) -> Iterator[tuple[Benchmark, tuple[Prompt, ...]]]:
    """Every benchmark of `benchmark_options` and its prompts."""
    for benchmark in map(load_benchmark, options.names):
        prompts = read_local(benchmark, options.local) if options.local else read_hub(benchmark)
        yield benchmark, prompts[: options.limit]


def mixed(requests: Iterable[Request]) -> list[Request]:
    """In an order that mixes what they come from, the same each time: the first so many are not all of one."""
    return sorted(requests, key=lambda request: sha256_bytes(request.id.encode()))


def written(make: Callable[[argparse.Namespace], Iterable[Request]], options: argparse.Namespace) -> int:
    """Make the requests, write them to `options.out`, say how many there are of each split; the exit status."""
    try:
        requests = list(make(options))
    except SpecPilotError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    options.out.write_bytes(write_requests(requests))
    sealed = sum(request.split == "sealed" for request in requests)
    print(f"{options.out}: {len(requests)} requests, {sealed} sealed", file=sys.stderr)
    return 0


def of_benchmarks(options: argparse.Namespace) -> list[Request]:
    """Of every benchmark in turn, or together."""
    encode = chat_encoder(options.tokenizer)
    requests = [r for benchmark, prompts in prompts_of(options) for r in requests_of(benchmark, prompts, encode)]
    if not options.together:
        return requests
    return mixed(r.model_copy(update={"benchmark": options.out.stem}) for r in requests)


def main() -> int:
    """Read, render, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    benchmark_options(parser)
    parser.add_argument("--together", action="store_true", help="one benchmark, named like the file")
    parser.add_argument("-o", "--out", type=Path, required=True)
    return written(of_benchmarks, parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
