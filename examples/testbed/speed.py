"""Times of everything that the training does, on a random target of SmolLM2-135M's shape: no download, no text.

    python examples/testbed/speed.py --out speed.json [--device cuda] [--until 95] [--smoke]

Prints a line of JSON for each item as it comes, the most useful first, and goes on behind an item that fails. tau means
nothing here. `--smoke` takes a tiny target.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
from profile_step import profiled, timed  # noqa: E402
from recipe import ALGORITHMS, Recipe  # noqa: E402
from train import drafters_of  # noqa: E402
from training import Training, rows_of  # noqa: E402

from specpilot_cli.testbed.nn.acceptance import Texts, tau_of  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseConfig, DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.features import features_of  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, greedy, sampler  # noqa: E402

SMOLLM2 = DenseConfig(49152, 576, 1536, 30, 9, 3, 64, 1e-5, 100000.0, 8192)
TINY = DenseConfig(300, 48, 64, 6, 3, 1, 16, 1e-5, 10000.0, 1024)
VARIANTS = ("fuse=0", "layers=5", "optimizer=muon", "softness=0.5;hard=0.8", "sequences=64", "sequences=48;anchors=128")
SMALL = ("layers=2", "optimizer=muon", "softness=0.5;hard=0.8")


class Speed:
    """The target, made-up texts and the report."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.begun = options, time.perf_counter()
        self.report: dict[str, Any] = {}
        self.cuda = options.device == "cuda"
        torch.manual_seed(0)
        kind = torch.bfloat16 if options.device != "cpu" else torch.float32
        with torch.device(options.device):
            self.target = DenseModel(TINY if options.smoke else SMOLLM2).eval().requires_grad_(False)
        for parameter in self.target.parameters():  # the rotary tables stay in float32
            parameter.data = parameter.data.to(kind)
        self.recipe = (Recipe().smoke() if options.smoke else Recipe()).changed(options.set)
        count = 24 if options.smoke else 4096
        first = torch.randint(20, 160, (count,))
        lengths = first + torch.randint(40, 256, (count,))
        vocabulary = self.target.config.vocab_size
        self.texts = Texts(torch.randint(vocabulary, (count, int(lengths.max()))), first, lengths)

    def item(self, name: str, call: Callable[[], Any]) -> None:
        """One line; nothing begins behind --until."""
        begun = time.perf_counter()
        if begun - self.begun > self.options.until:
            return
        try:
            found = call()
        except Exception:  # the other items are still of use
            found = {"error": traceback.format_exc().strip().splitlines()[-3:]}
        self.report[name] = found
        print(f"[{time.perf_counter() - self.begun:.1f} s] {name}: {json.dumps(found)}", flush=True)
        self.options.out.write_text(json.dumps(self.report, indent=1) + "\n")
        if self.cuda:
            torch.cuda.empty_cache()

    def stored(self) -> dict[str, Any]:
        """Features of all texts, with soft labels."""
        begun = time.perf_counter()
        layers = Training(self.recipe, self.target, self.drafters(ALGORITHMS), self.folder(), None).layers
        self.layers, self.features = layers, features_of(self.target, self.texts, layers, self.recipe.soft_labels)
        if self.cuda:
            torch.cuda.synchronize()
        tokens = int(self.texts.lengths.sum())
        seconds = time.perf_counter() - begun
        return {"kind": type(self.features).__name__, "tokens": tokens, "tokens_a_s": round(tokens / seconds)}

    def drafters(self, names: Any, recipe: Recipe | None = None) -> Any:
        """Untrained."""
        return drafters_of(recipe or self.recipe, self.target, self.target.config.vocab_size - 1, list(names))

    def folder(self) -> Path:
        """Nothing to resume from."""
        return Path(tempfile.mkdtemp(prefix="speed-"))

    def step(self, name: str, change: str = "", kernels: bool = False) -> dict[str, Any]:
        """A training step of one drafter: its milliseconds, and blocks a second."""
        recipe = self.recipe.changed([c for c in change.split(";") if c])
        training = Training(recipe, self.target, self.drafters([name], recipe), self.folder(), None)
        training.layers, training.features = self.layers, self.features
        if kernels:
            return {**profiled(training, self.texts), "gb": self.gigabytes()}
        losses: list[Any] = []

        def step() -> None:
            losses.append(training.robust_step(self.texts)[name])
            training.clock.step += 1

        begun = time.perf_counter()
        for _ in range(8):  # both block lengths, a few widths
            step()
        first = round(time.perf_counter() - begun, 1)
        found = {"step_ms": timed(step, self.cuda), "first_8_s": first, "loss": round(losses[-1].item(), 2)}
        return {**found, "gb": self.gigabytes()}

    def gigabytes(self) -> float:
        """Most memory that was held since the last question."""
        if not self.cuda:
            return 0.0
        most = torch.cuda.max_memory_allocated() / 1e9
        torch.cuda.reset_peak_memory_stats()
        return round(most, 1)

    def writing(self, batch: int, slots: int = 512, steps: int = 40) -> dict[str, Any]:
        """Milliseconds of a sampled and of a greedy step of text."""
        generator = Generator(self.target, batch, min(slots, self.texts.ids.shape[1]) + steps)
        prompts = self.texts.ids[: min(batch, len(self.texts)), :64].tolist()
        found: dict[str, Any] = {}
        chosen = sampler(0, self.target.embedding.device, min(50, self.recipe.top_k), 0.8)
        for name, choose in (("sampled", chosen), ("greedy", greedy)):
            generator.run(prompts, 2, choose, None)
            begun = time.perf_counter()
            generator.run(prompts, steps, choose, None)
            each = (time.perf_counter() - begun) / steps
            found[name] = {"ms_a_step": round(1e3 * each, 2), "tokens_a_s": round(batch / each)}
        return {**found, "gb": self.gigabytes()}

    def evaluation(self, name: str = "dflash2") -> dict[str, Any]:
        """Seconds for tau of 64 texts."""
        drafter, rows = self.drafters([name])[name], rows_of(self.recipe, name)[0]
        begun = time.perf_counter()
        with torch.autocast(self.options.device, dtype=torch.bfloat16, enabled=self.cuda):
            tau_of(drafter, self.target, self.texts.part(slice(0, 64)).to(self.options.device), rows)
        return {"seconds": round(time.perf_counter() - begun, 2), "gb": self.gigabytes()}

    def run(self) -> None:
        """All items that there is time for."""
        self.item("features", self.stored)
        for name in ALGORITHMS:
            self.item(f"step {name}", lambda name=name: self.step(name))  # type: ignore[misc]
        self.item("profile dflash2", lambda: self.step("dflash2", kernels=True))
        for batch in (8,) if self.options.smoke else (512, 2048):
            self.item(f"writing at {batch}", lambda batch=batch: self.writing(batch))  # type: ignore[misc]
        self.item("evaluation", self.evaluation)
        for change in SMALL if self.options.smoke else VARIANTS:
            self.item(f"step dflash2 {change}", lambda change=change: self.step("dflash2", change))  # type: ignore[misc]
        for name in ALGORITHMS[1:]:
            self.item(f"profile {name}", lambda name=name: self.step(name, kernels=True))  # type: ignore[misc]


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--until", type=float, default=95.0, help="seconds from now on: nothing begins later")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="recipe numbers to change")
    Speed(parser.parse_args()).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
