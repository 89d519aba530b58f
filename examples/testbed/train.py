"""Train DFLASH2, DSPARK and EAGLE-3 drafters for a dense target on text that the target writes itself.

    python examples/testbed/train.py --target DIR --work DIR --out DIR [--device cuda] [--minutes 6] [--prompts DIR]
    python examples/testbed/train.py --smoke --work DIR --out DIR                 # every stage on a CPU, about a minute

Stages, each resumed from --work: text, drafters, files, evaluation.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
from prompts import Known  # noqa: E402
from recipe import ALGORITHMS, Recipe, feature_layers  # noqa: E402
from smoke import tiny_target  # noqa: E402
from texts import PROMPT_ROOM, Chat, benchmark_texts, load_texts, pairs_of, texts_of, write_texts, written_s  # noqa: E402
from training import Drafter, Training, rows_of  # noqa: E402

from specpilot_cli.core.digest import sha256_file  # noqa: E402
from specpilot_cli.testbed.nn.acceptance import Texts, tau_of  # noqa: E402
from specpilot_cli.testbed.nn.block_drafter import BlockConfig, BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleConfig, EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.files import load, save  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator  # noqa: E402
from specpilot_cli.testbed.nn.initial import begin_with, same_shapes  # noqa: E402

BENCHMARK_ROOM = 640
MINUTELY = 32
"""Held-out texts for the evaluation of every minute; the last one takes all."""
RESERVE_S = 45.0
"""For files and evaluation, out of --total-minutes."""


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="checkpoint folder (convert.py writes one)")
    parser.add_argument("--work", type=Path, required=True, help="folder for resumable state")
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafters")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, help="train so long instead of the recipe's steps")
    parser.add_argument("--text-minutes", type=float, help="write text for at most so long")
    parser.add_argument(
        "--part", type=part_of, help="K/N: write every N-th batch of text from the K-th on, and no more"
    )
    parser.add_argument("--total-minutes", type=float, help="end the training so that all is done by then")
    parser.add_argument("--prompts", type=Path, help="folder of held-out prompts (*.jsonl), for the evaluation")
    parser.add_argument("--mask-token", default="<empty_output>", help="a token that the target never writes")
    parser.add_argument("--init", type=Path, help="folder of drafters to go on from, as an earlier run wrote them")
    parser.add_argument("--only", choices=ALGORITHMS, nargs="*", default=ALGORITHMS)
    parser.add_argument("--smoke", action="store_true", help="a random target, a few steps of every stage")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="recipe numbers to change")
    return parser.parse_args()


def part_of(text: str) -> tuple[int, int]:
    """K/N, 1 <= K <= N."""
    k, n = (int(word) for word in text.split("/"))
    if not 1 <= k <= n:
        raise argparse.ArgumentTypeError(f"{text} is no part")
    return k, n


def drafters_of(recipe: Recipe, target: DenseModel, mask: int, names: list[str]) -> dict[str, Drafter]:
    """Untrained, in float32, on the target's device."""
    c = target.config
    shape: dict[str, Any] = {
        "num_attention_heads": recipe.heads, "num_key_value_heads": recipe.kv_heads, "head_dim": recipe.head_dim,
        "intermediate_size": recipe.intermediate, "max_position_embeddings": c.max_position_embeddings,
        "rope_theta": c.rope_theta,
    }  # fmt: skip
    made: dict[str, Drafter] = {}
    for name, algorithm in (("dflash2", "DFLASH2"), ("dspark", "DSPARK")):
        if name in names:
            config = BlockConfig(
                "DFLASH2" if algorithm == "DFLASH2" else "DSPARK", c.hidden_size, c.vocab_size, c.num_hidden_layers,
                feature_layers(c.num_hidden_layers, recipe.features), mask, num_hidden_layers=recipe.layers,
                block_size=rows_of(recipe, name)[0], rank=recipe.rank, **shape,
            )  # fmt: skip
            made[name] = BlockDrafter(config)
    if "eagle3" in names:
        ids = feature_layers(c.num_hidden_layers, recipe.eagle_features)
        made["eagle3"] = EagleHead(EagleConfig(c.hidden_size, c.vocab_size, ids, **shape))
    made = {name: module.to(target.embedding.device) for name, module in made.items()}
    for module in made.values():
        if recipe.init == "target" and same_shapes(module, target):
            begin_with(module, target)
    return made


def begun(drafters: dict[str, Drafter], folder: Path | None) -> dict[str, Drafter]:
    """`drafters` with the weights of an earlier run's; the optimisers begin anew."""
    for name, module in drafters.items() if folder else ():
        assert folder is not None
        earlier = load(folder / name, str(next(module.parameters()).device), torch.float32)
        assert isinstance(earlier, BlockDrafter | EagleHead)
        if earlier.config != module.config:
            raise SystemExit(f"{folder / name} has other shapes than the recipe")
        module.load_state_dict(earlier.state_dict())
    return drafters


class Laps:
    """Seconds of every stage, and on stdout when each is done."""

    def __init__(self) -> None:
        self.stages: dict[str, float] = {}
        self._last = self._begun = time.perf_counter()

    def left(self, options: argparse.Namespace) -> float | None:
        """Minutes to train: --minutes, or what is left of --total-minutes."""
        if options.total_minutes is None:
            minutes: float | None = options.minutes
            return minutes
        spare = options.total_minutes - (time.perf_counter() - self._begun + RESERVE_S) / 60
        return max(0.1, min(spare, options.minutes or spare))

    def lap(self, name: str) -> None:
        """A stage is done."""
        now = time.perf_counter()
        self.stages[name] = round(now - self._last, 1)
        self._last = now
        print(f"== {name}: {self.stages[name]} s", flush=True)


def known_prompts(folder: Path | None) -> list[str]:
    """Held-out prompts that training text must not repeat."""
    paths = sorted(folder.glob("*.jsonl")) if folder else []
    return [json.loads(line)["prompt"] for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def evaluate(
    options: argparse.Namespace, recipe: Recipe, target: DenseModel, held: Texts, chat: Chat, about: dict[str, Any]
) -> None:
    """tau of the drafters as they were written, on the held-out texts and on the prompts of every benchmark.

    `evaluation.json` is rewritten after each drafter.
    """
    sets = {"held-out": held}
    if options.prompts:
        generator = Generator(target, 64, BENCHMARK_ROOM + recipe.new_tokens)
        read = benchmark_texts(
            options.prompts, lambda m: pairs_of(generator, chat, m, recipe.new_tokens, BENCHMARK_ROOM)
        )
        sets |= {name: texts_of(pairs) for name, pairs in read.items()}
    dtype = target.embedding.dtype
    found: dict[str, Any] = {}
    for name in options.only:
        drafter = load(options.out / name, options.device, dtype)
        assert isinstance(drafter, BlockDrafter | EagleHead)
        for rows in rows_of(recipe, name):
            for label, texts in sets.items():
                got = tau_of(drafter, target, texts.to(options.device), rows, 8)
                line = {"tau": round(got.tau, 3), "steps": got.steps, "accepted": got.accepted, "texts": len(texts)}
                found.setdefault(f"{name}@{rows}", {})[label] = line
        print(name, json.dumps({k: v for k, v in found.items() if k.startswith(name)}), flush=True)
        (options.out / "evaluation.json").write_text(json.dumps({"tau": found, **about}, indent=1) + "\n")


def main() -> int:
    """Run all stages."""
    options = arguments()
    recipe = (Recipe().smoke() if options.smoke else Recipe()).changed(options.set)
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    if options.smoke and options.target is None:
        options.target, options.mask_token = tiny_target(options.work / "target"), "<mask>"
    if options.target is None:
        raise SystemExit("--target is needed (convert.py makes one), or --smoke")
    torch.manual_seed(recipe.seed)
    laps = Laps()
    target = load(options.target, options.device, torch.bfloat16 if options.device != "cpu" else torch.float32)
    assert isinstance(target, DenseModel)
    chat = Chat.of(options.target)
    mask = chat.tokenizer.token_to_id(options.mask_token)
    if mask is None:
        raise SystemExit(f"the tokenizer has no {options.mask_token}")
    laps.lap("load")
    generator = Generator(target, recipe.batch, PROMPT_ROOM + max(recipe.new_tokens, recipe.message_tokens))
    paths = write_texts(
        recipe, generator, chat, Known(known_prompts(options.prompts)), options.work, options.text_minutes,
        options.part or (1, 1),
    )  # fmt: skip
    if options.part:
        return 0
    del generator
    texts, held = load_texts(paths, recipe.held_out)
    print(f"{len(texts)} texts, {int((texts.lengths - texts.first).sum()):,} answer tokens; {len(held)} held out")
    laps.lap("text")
    drafters = begun(drafters_of(recipe, target, mask, list(options.only)), options.init)
    training = Training(recipe, target, drafters, options.work, None)
    training.ready(texts)
    laps.lap("ready")
    training.clock.minutes = laps.left(options)
    some = held.part(slice(0, MINUTELY))
    training.run(texts, lambda: print("tau", json.dumps(training.taus(some)), flush=True))
    laps.lap("drafters")
    about = {
        "target_sha256": sha256_file(options.target / "model.safetensors"), "recipe": recipe.to_json(),
        "steps": training.clock.step, "init": str(options.init or ""),
        "texts": len(texts), "stages_s": laps.stages, "texts_s": round(written_s(options.work), 1),
        "trained_s": round(training.clock.seconds, 1), "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.device == "cuda" else platform.processor() or "cpu",
    }  # fmt: skip
    for name, module in training.drafters.items():
        save(module, module.config.to_json(), options.out / name, {"drafter": name, **about})
    laps.lap("files")
    evaluate(options, recipe, target, held, chat, about)
    laps.lap("evaluation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
