"""More held-out prompts: further windows of the files that the develop requests came from (never of a sealed one's).

    python examples/04-replay/prompts.py OUT.jsonl [--windows 16] [--seed 20261129]

Needs the interpreter whose standard library the checkpoint was trained on (see its manifest.json).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "train-miniengine"))

from corpus import from_interpreter, is_held_out  # noqa: E402
from requests_set import prompt_in  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

from specpilot_cli.deployment import load_requests  # noqa: E402
from specpilot_cli.engine.miniengine.adapter import CHECKPOINT  # noqa: E402


def main() -> int:
    """Write the request file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--windows", type=int, default=16, help="windows a file")
    parser.add_argument("--seed", type=int, default=20261129)
    options = parser.parse_args()
    corpus, draw = from_interpreter(), random.Random(options.seed)
    expected = json.loads((CHECKPOINT / "manifest.json").read_text())["text"]
    if corpus.digest != expected["sha256"]:
        print(f"this Python's library is not the checkpoint's ({expected['python']})", file=sys.stderr)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    develop = load_requests("miniengine-stdlib", "develop").requests
    taken = {request.input_ids for request in develop}
    lines = []
    for source in sorted({request.source for request in develop}):
        text = corpus.files.get(source)
        if text is None or not is_held_out(text):
            print(f"skipped: {source} is not held out here", file=sys.stderr)
            continue
        ids = tokenizer.encode(text).ids
        for _ in range(options.windows):
            window = prompt_in(ids, tokenizer, draw)
            if window is None or tuple(window) in taken:
                continue
            taken.add(tuple(window))
            lines.append({
                "id": f"{source}#{len(lines):04d}", "split": "develop", "source": source,
                "prompt": tokenizer.decode(window), "input_ids": window, "max_new_tokens": 96,
            })  # fmt: skip
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
