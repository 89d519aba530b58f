"""What the pair-run needs beside the stock tree: requests, a deployment file, stand-ins for two packages.

python prepare.py CHECKPOINT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.testbed.chat import chat_encoder

ID = "smollm2__none__cpu__r8"
NEW_TOKENS = 128
MESSAGES = (
    "Why does ice float on water? Explain it to a child.",
    "Write a short letter to a neighbour whose dog barks at night.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the trip take? Show your steps.",
    "Describe how bread is made, from the flour to the loaf.",
    "Write a Python function that returns the second largest number of a list.",
    "What is the difference between a lake and a sea?",
    "Tell a story about a lighthouse keeper who finds a map.",
    "List five things to check before a long bicycle tour, with a reason for each.",
    "Explain in simple words what a compiler does.",
    "A box holds 12 rows of 8 oranges. A quarter of them are sold. How many are left?",
    "Summarise the water cycle in four sentences.",
    "Write a Python function that counts the vowels of a string, with an example call.",
    "Why do we have leap years?",
    "Give three arguments for and three against homework.",
    "Write a poem about the first snow in a town by the sea.",
    "How would you explain to a friend what interest on a loan is?",
)
FLAGS = (
    "--device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none --dtype bfloat16 "
    "--skip-tokenizer-init --disable-radix-cache --sleep-on-idle --max-total-tokens 4096 --context-length 1024 "
    "--max-running-requests 8 --random-seed 0"
).split()


def main(checkpoint: Path) -> None:
    """Into the current folder."""
    write_stubs(Path("stubs"))
    encode = chat_encoder(checkpoint)
    lines = [
        {"id": f"q{n:02}", "split": "develop", "prompt": text, "input_ids": encode(text), "max_new_tokens": NEW_TOKENS}
        for n, text in enumerate(MESSAGES)
    ]
    Path("requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    args = ["--model-path", str(checkpoint), *FLAGS]
    Path(f"{ID}.toml").write_text(
        f'id = "{ID}"\nengine = "sglang-0.5.20"\nmodel = "smollm2"\ndrafter = "none"\ngpu = "cpu"\n'
        f"requests = {json.dumps(str(Path('requests.jsonl').resolve()))}\nserver_args = {json.dumps(args)}\n\n"
        f"[shape]\nconcurrency = 8\nmax_new_tokens = {NEW_TOKENS}\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
