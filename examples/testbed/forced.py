"""Where the texts that `serve.py` kept are not the target's own choice: teacher forcing through the plain module.

    python examples/testbed/forced.py --target DIR --prompts DIR --texts serve-texts.json --out forced.json

Every token of every system is compared with the float32 argmax after the same prefix. An engine that computes in BF16
picks another token at near-ties, AR too: what counts is whether a speculative system does so more often or by larger
margins than AR. For a verdict with error rates there is `specpilot force-tokens`; this needs no engine and no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from serve import prompts_of  # noqa: E402

from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402

LARGE = 0.5
"""Nats; a mismatch beyond it is counted apart."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="as serve.py took them")
    parser.add_argument("--texts", type=Path, required=True, help="serve-texts.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--systems", nargs="*", help="default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


@torch.no_grad()
def margins(model: DenseModel, prompt: list[int], answer: list[int]) -> list[float]:
    """Nats by which the target prefers its own token over the answer's, at every position; 0 where they agree."""
    ids = torch.tensor([prompt + answer], device=model.embedding.device)
    hidden, _ = model(ids)
    rows = F.linear(hidden[0, len(prompt) - 1 : -1], model.head).float()
    given = rows.gather(1, ids[0, len(prompt) :, None])[:, 0]
    found: list[float] = (rows.max(-1).values - given).tolist()  # logits' differences are those of log-probabilities
    return found


def tallied(values: list[list[float]]) -> dict[str, Any]:
    """Rates over all texts, with the standard error over texts."""
    tokens, wrong = sum(map(len, values)), [sum(m > 0 for m in text) for text in values]
    rate = sum(wrong) / tokens
    spread = sum((w - rate * len(text)) ** 2 for w, text in zip(wrong, values, strict=True))
    flat = [m for text in values for m in text if m > 0]
    return {
        "texts": len(values), "tokens": tokens, "mismatches": len(flat), "rate": round(rate, 6),
        "standard_error": round(math.sqrt(spread) / tokens, 6), "large": sum(m > LARGE for m in flat),
        "largest_nats": round(max(flat, default=0.0), 4),
    }  # fmt: skip


def main() -> int:
    """All systems, one after the other; --out is rewritten after each."""
    options = arguments()
    model = load(options.target, options.device, torch.float32)
    assert isinstance(model, DenseModel)
    prompts = prompts_of(options)
    texts: dict[str, dict[str, list[list[int]]]] = json.loads(options.texts.read_text())
    found: dict[str, Any] = {}
    for system in options.systems or texts:
        values = [
            margins(model, prompt, answer)
            for name, answers in texts[system].items()
            for prompt, answer in zip(prompts[name], answers, strict=True)
            if answer
        ]
        found[system] = tallied(values)
        options.out.write_text(json.dumps({"large_nats": LARGE, "systems": found}, indent=1) + "\n")
        print(system, json.dumps(found[system]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
