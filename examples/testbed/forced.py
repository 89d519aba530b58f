"""Where the texts that `serve.py` kept are not the target's own choice: teacher forcing through the plain module.

    python examples/testbed/forced.py --target DIR --prompts DIR --texts serve-texts.json --out forced.json

Every token of every system is compared with the float32 argmax after the same prefix. An engine that computes in BF16
picks another token at near-ties, AR too: what counts is whether a speculative system does so more often or by larger
margins than AR. That is judged by the rules and thresholds of `specpilot force-tokens`, with AR as stock and the
default delta; this needs no engine and no GPU. A stand-in's texts are forced through its core, whose float32 text is
the same.
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

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from serve import prompts_of  # noqa: E402

from specpilot_cli.forcing.bounds import PairedCounts  # noqa: E402
from specpilot_cli.forcing.rules import event_rule, rate_rule  # noqa: E402
from specpilot_cli.forcing.thresholds import load_thresholds  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridModel  # noqa: E402

THRESHOLDS = load_thresholds()
LARGE = THRESHOLDS.event_margin_deltas * THRESHOLDS.delta_default_nats
"""Nats; a mismatch of so much is an event of the second rule."""
Text = tuple[list[int], list[float]]
"""A text's tokens, and by how much each is not the target's choice."""


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
def margins(model: DenseModel | HybridModel, prompt: list[int], answer: list[int]) -> list[float]:
    """Nats by which the target prefers its own token over the answer's, at every position; 0 where they agree."""
    if not answer:
        return []
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
        "standard_error": round(math.sqrt(spread) / tokens, 6), "large": sum(m >= LARGE for m in flat),
        "largest_nats": round(max(flat, default=0.0), 4),
    }  # fmt: skip


def shared(one: list[int], other: list[int]) -> int:
    """Leading tokens that both have."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def against(ours: list[Text], theirs: list[Text]) -> dict[str, Any]:
    """Both rules of `force-tokens`, texts of the same requests; tokens before two texts part say nothing (`tally`)."""
    counts = {}
    for name, least in (("rate", 0.0), ("event", LARGE)):
        table = np.zeros((len(ours), 4))
        for row, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            start = shared(one[0], other[0])
            for column, (ids, values) in ((0, one), (2, other)):
                wrong = sum(m > 0 and m >= least for m in values[start:])
                table[row, column : column + 2] = wrong, len(ids)
        counts[name] = PairedCounts(*table.T)
    rate, event = rate_rule(counts["rate"], THRESHOLDS), event_rule(counts["event"], THRESHOLDS)
    outcomes = {rate.outcome, event.outcome}
    verdict = "LOSSY" if "reject" in outcomes else "LOSSLESS" if outcomes == {"pass"} else "UNDERPOWERED"
    return {"verdict": verdict, "rate_rule": rate.model_dump(mode="json"), "event_rule": event.model_dump(mode="json")}


def main() -> int:
    """All systems, one after the other; --out is rewritten after each."""
    options = arguments()
    model = load(options.target, options.device, torch.float32)
    assert isinstance(model, DenseModel | HybridModel)
    prompts = prompts_of(options)
    texts: dict[str, dict[str, list[list[int]]]] = json.loads(options.texts.read_text())
    found: dict[str, Any] = {}
    forced: dict[str, list[Text]] = {}
    for system in options.systems or texts:
        forced[system] = [
            (answer, margins(model, prompt, answer))
            for name, answers in texts[system].items()
            for prompt, answer in zip(prompts[name], answers, strict=True)
        ]
        found[system] = tallied([values for _, values in forced[system]])
        if system != "ar" and "ar" in forced:
            found[system] |= against(forced[system], forced["ar"])
        options.out.write_text(json.dumps({"large_nats": LARGE, "systems": found}, indent=1) + "\n")
        print(system, json.dumps(found[system]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
