"""Train the hybrid core (Qwen3.5 architecture) on the standard library's sources, with DFLASH2 and DSPARK drafters.

    python examples/testbed/core.py --work DIR --out DIR [--core-minutes 4 --drafter-minutes 3] [--text ARCHIVE]
    python examples/testbed/core.py --smoke --work DIR --out DIR                  # every stage on a CPU in seconds

`--text` takes an archive of `examples/train-miniengine/train.py --pack`, so that machines with another Python train on
the same text. Stages, each resumed from --work: tokenizer, core, continuations, drafters, files, evaluation.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1]), str(HERE.parent / "train-miniengine")]

import torch  # noqa: E402
from core_recipe import CoreRecipe  # noqa: E402
from core_training import continuations, new_core, snap, train_core, windows  # noqa: E402
from corpus import Corpus, from_archive, from_interpreter, train_tokenizer  # noqa: E402
from recipe import feature_layers  # noqa: E402
from torch import Tensor  # noqa: E402
from training import Drafter, Training, rows_of  # noqa: E402

from specpilot_cli.testbed.chat import load_tokenizer  # noqa: E402
from specpilot_cli.testbed.nn.acceptance import Texts, tau_of  # noqa: E402
from specpilot_cli.testbed.nn.block_drafter import BlockConfig, BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.files import load, save  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridModel  # noqa: E402

NAMES = ("dflash2", "dspark")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for resumable state")
    parser.add_argument("--out", type=Path, required=True, help="folder for core and drafters")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--core-minutes", type=float, help="instead of the recipe's steps")
    parser.add_argument("--drafter-minutes", type=float, help="instead of the recipe's steps")
    parser.add_argument("--text", type=Path, help="archive of sources instead of this interpreter's library")
    parser.add_argument(
        "--from", dest="earlier", type=Path, help="--out of an earlier run: its core and tokenizer are kept"
    )
    parser.add_argument("--smoke", action="store_true", help="every stage in miniature")
    return parser.parse_args()


def streams(
    recipe: CoreRecipe, corpus: Corpus, work: Path, out: Path, earlier: Path | None = None
) -> tuple[Tensor, Tensor]:
    """Token streams of training and held-out files; the tokenizer, new or the earlier run's, goes to `out`."""
    tokenizer = load_tokenizer(earlier) if earlier else train_tokenizer(corpus, recipe.vocabulary - 1)
    tokenizer.save(str(out / "tokenizer.json"))
    path = work / "streams.pt"
    if not path.exists():
        found = []
        for held in (False, True):
            ids: list[int] = []
            for encoded in tokenizer.encode_batch([text for _, text in corpus.part(held)]):
                ids += [*encoded.ids, 0]
            found.append(torch.tensor(ids))
        torch.save(found, path)
    train, held_out = torch.load(path, weights_only=True)
    return train, held_out


def drafters_of(recipe: CoreRecipe, model: HybridModel) -> dict[str, Drafter]:
    """Untrained, on the core's device."""
    d, c = recipe.drafters, model.config
    ids, shared = feature_layers(c.num_hidden_layers, d.features), dict[str, Any](
        num_hidden_layers=d.layers, num_attention_heads=d.heads, num_key_value_heads=d.kv_heads, head_dim=d.head_dim,
        intermediate_size=d.intermediate, rank=d.rank, max_position_embeddings=c.max_position_embeddings,
    )  # fmt: skip
    made: dict[str, Drafter] = {}
    for name in NAMES:
        config = BlockConfig(
            "DFLASH2" if name == "dflash2" else "DSPARK", c.hidden_size, c.vocab_size, c.num_hidden_layers, ids,
            recipe.vocabulary - 1, block_size=rows_of(d, name)[0], **shared,
        )  # fmt: skip
        made[name] = BlockDrafter(config).to(model.embedding.device)
    return made


def evaluate(recipe: CoreRecipe, out: Path, device: str, held: Texts) -> dict[str, Any]:
    """tau of what was written, on continuations of held-out files."""
    dtype = torch.bfloat16 if device != "cpu" else torch.float32
    target = load(out / "core", device, dtype)
    assert isinstance(target, HybridModel)
    found = {}
    for name in NAMES:
        drafter = load(out / name, device, dtype)
        assert isinstance(drafter, BlockDrafter)
        for rows in rows_of(recipe.drafters, name):
            got = tau_of(drafter, target, held.to(device), rows, 16)
            found[f"{name}@{rows}"] = {"tau": round(got.tau, 3), "steps": got.steps, "accepted": got.accepted}
    return found


def trained_core(options: argparse.Namespace, recipe: CoreRecipe, stream: Tensor, held: Tensor) -> HybridModel:
    """Trained, rounded, written to `out/core` and read back in the type that is served; an earlier run's is copied."""
    if options.earlier:
        shutil.copytree(options.earlier / "core", options.out / "core", dirs_exist_ok=True)
        return served_core(options)
    torch.manual_seed(recipe.seed)
    model = new_core(recipe).to(options.device)
    clock = train_core(recipe, model, stream, held, options.work, options.core_minutes)
    snap(model)
    about = {"recipe": dataclasses.asdict(recipe), "steps": clock.step, "torch": torch.__version__}
    save(model, model.config.to_json(), options.out / "core", about)
    return served_core(options)


def served_core(options: argparse.Namespace) -> HybridModel:
    """`out/core` in the type that is served."""
    back = load(options.out / "core", options.device, torch.bfloat16 if options.device != "cpu" else torch.float32)
    assert isinstance(back, HybridModel)
    return back


def main() -> int:
    """Run all stages."""
    options = arguments()
    recipe = CoreRecipe().smoke() if options.smoke else CoreRecipe()
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    started, seconds = time.perf_counter(), {}
    corpus = from_archive(options.text) if options.text else from_interpreter()
    stream, held_stream = streams(recipe, corpus, options.work, options.out, options.earlier)
    seconds["tokenizer"] = time.perf_counter() - started
    print(f"{len(stream):,} training tokens, {len(held_stream):,} held out, text {corpus.digest[:12]}", flush=True)
    served = windows(held_stream, recipe.served, recipe.prompt_tokens, 1).tolist()
    (options.out / "held-ids.json").write_text(json.dumps({"held": served}))
    core = trained_core(options, recipe, stream, held_stream)
    seconds["core"] = time.perf_counter() - started
    texts = continuations(recipe, core, stream, recipe.texts, recipe.seed, options.work / "continuations.json")
    held = continuations(recipe, core, held_stream, recipe.drafters.held_out, 1, options.work / "held.json")
    seconds["continuations"] = time.perf_counter() - started
    training = Training(recipe.drafters, core, drafters_of(recipe, core), options.work, options.drafter_minutes)
    training.run(texts, lambda: print("tau", json.dumps(training.taus(held)), flush=True))
    for name, module in training.drafters.items():
        save(module, module.config.to_json(), options.out / name, {"drafter": name, "steps": training.clock.step})
    seconds["drafters"] = time.perf_counter() - started
    report = {
        "tau": evaluate(recipe, options.out, options.device, held), "text_sha256": corpus.digest,
        "python": corpus.python, "done_after_s": {k: round(v, 1) for k, v in seconds.items()},
    }  # fmt: skip
    (options.out / "evaluation.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(report), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
