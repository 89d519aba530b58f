"""Where two systems' texts part, and how near the two best tokens lie there: float32, by the testbed's own model.

    python examples/tree/near_ties.py --texts OUT/texts.json --target DIR [--prompts FILE] --pairs dflash2@8,dspark@7+32

For each parting: the text, the token number, both tokens, whether they are the model's two best, and the gap of their
logits. Before them the gaps of all tokens of the first system's texts: median and the smallest hundredth. In BF16 a
logit of 32 to 64 is a multiple of 0.25; what parts at gaps far above that is no near-tie.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
from hybrid import prompts_of  # noqa: E402

from specpilot_cli.testbed.nn.files import load  # noqa: E402


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="of hybrid.py")
    parser.add_argument("--target", type=Path, required=True, help="--tiny's model, or a stand-in's core")
    parser.add_argument("--prompts", type=Path, help="as hybrid.py had them")
    parser.add_argument("--pairs", nargs="+", required=True, metavar="ONE,OTHER")
    parser.add_argument("--width", default="24", help="texts of so many requests at once")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


class Judge:
    """The target in float32."""

    def __init__(self, folder: Path, device: str) -> None:
        self.model: Any = load(folder, device, torch.float32)
        self.device = device

    @torch.no_grad()
    def logits(self, prompt: list[int], text: list[int]) -> torch.Tensor:
        """[T, vocabulary]: what stands before every token of the text."""
        hidden, _ = self.model(torch.tensor([prompt + text], device=self.device))
        rows = hidden[0, len(prompt) - 1 : len(prompt) + len(text) - 1]
        return (rows @ self.model.head.T).float()


def gaps(logits: torch.Tensor) -> torch.Tensor:
    """[T]: the best logit less the second."""
    best = logits.topk(2).values
    return best[:, 0] - best[:, 1]


def parting(judge: Judge, prompt: list[int], one: list[int], other: list[int]) -> dict[str, Any] | None:
    """The first token that differs; None where the texts are the same."""
    at = next((n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)
    if at is None:
        return None
    row = judge.logits(prompt, one[: at + 1])[-1]
    best = row.topk(2).indices.tolist()
    return {
        "at": at, "tokens": [one[at], other[at]], "two_best": sorted(best) == sorted([one[at], other[at]]),
        "gap": round(float((row[one[at]] - row[other[at]]).abs()), 4), "logit": round(float(row[best[0]]), 2),
    }  # fmt: skip


def main() -> int:
    """Every pair."""
    options = arguments()
    options.widths = [24]
    texts, prompts = json.loads(options.texts.read_text()), prompts_of(options)
    judge, found = Judge(options.target, options.device), {}
    for pair in options.pairs:
        one, _, other = pair.partition(",")
        mine, theirs = texts[one][options.width], texts[other][options.width]
        every = torch.cat([gaps(judge.logits(p, t)) for p, t in zip(prompts, mine, strict=False)]).sort().values
        parted = [
            {"text": number, **found_here}
            for number, (prompt, a, b) in enumerate(zip(prompts, mine, theirs, strict=False))
            if (found_here := parting(judge, prompt, a, b)) is not None
        ]
        found[pair] = {
            "texts": len(mine), "tokens": len(every), "median_gap": round(float(every[len(every) // 2]), 4),
            "hundredth_gap": round(float(every[len(every) // 100]), 4), "partings": parted,
        }  # fmt: skip
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
