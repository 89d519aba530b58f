"""Writes a set of random prompts: `python profiles/requests/make_random.py sglang-random-64 64 256 > FILE.jsonl`."""

from __future__ import annotations

import argparse
import hashlib
import json
import struct

WORDS = 8
"""Ids that one digest gives."""


def prompt(name: str, request: int, length: int) -> list[int]:
    """`length` ids: 1000 + u % 90000 with u the little-endian 32-bit words of sha256('NAME,REQUEST,BLOCK')."""
    blocks = [hashlib.sha256(f"{name},{request},{at}".encode()).digest() for at in range(-(-length // WORDS))]
    return [1000 + word % 90000 for block in blocks for word in struct.unpack(f"<{WORDS}I", block)][:length]


def main() -> None:
    """Print one request a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="seed of the prompts")
    parser.add_argument("tokens", type=int, help="of a prompt")
    parser.add_argument("each", type=int, help="requests in each split")
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    options = parser.parse_args()
    for request in range(2 * options.each):
        split = "develop" if request < options.each else "sealed"
        ids = prompt(options.name, request, options.tokens)
        found = {"id": f"random-{request:03d}", "split": split, "prompt": "", "input_ids": ids}
        print(json.dumps({**found, "max_new_tokens": options.max_new_tokens}))


if __name__ == "__main__":
    main()
