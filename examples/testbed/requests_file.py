"""Benchmarks of `profiles/requests/` as a request file (token ids through a checkpoint's chat template).

    python examples/testbed/requests_file.py gsm8k --tokenizer smollm2 [--local FOLDER] [--limit N] -o gsm8k.jsonl
    python examples/testbed/requests_file.py gsm8k mbpp humaneval mtbench --together ...      # batches may mix them

A paired run never mixes two benchmarks in a batch, and each needs eight batches of every size; `--together` makes one
of several that are small.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import SpecPilotError
from specpilot_cli.testbed.benchmarks import (
    BENCHMARKS,
    load_benchmark,
    read_hub,
    read_local,
    requests_of,
    write_requests,
)
from specpilot_cli.testbed.chat import chat_encoder


def main() -> int:
    """Read, render, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=BENCHMARKS)
    parser.add_argument("--together", action="store_true", help="one benchmark, named like the file")
    parser.add_argument("--tokenizer", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--local", type=Path, help="folder with the local draw; without it the hub is read")
    parser.add_argument("--limit", type=int, help="of each")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        requests, encode = [], chat_encoder(options.tokenizer)
        for benchmark in map(load_benchmark, options.names):
            prompts = read_local(benchmark, options.local) if options.local else read_hub(benchmark)
            requests += requests_of(benchmark, prompts[: options.limit], encode)
        if options.together:  # in an order that mixes them: the first so many are not all of one
            requests = [r.model_copy(update={"benchmark": options.out.stem}) for r in requests]
            requests.sort(key=lambda r: sha256_bytes(r.id.encode()))
    except SpecPilotError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    options.out.write_bytes(write_requests(requests))
    sealed = sum(r.split == "sealed" for r in requests)
    print(f"{options.out}: {len(requests)} requests, {sealed} sealed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
