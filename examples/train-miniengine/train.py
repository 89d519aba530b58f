"""Train the miniengine's checkpoint from the standard library's own sources.

    python examples/train-miniengine/train.py --work DIR --out DIR [--smoke] [--device cuda] [--text ARCHIVE]

Stages (each resumes from --work): tokenizer, target, continuations, drafters, files, evaluation.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import sys
import tarfile
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "specpilot_cli" / "engine" / "miniengine" / "src")]

import torch  # noqa: E402
from corpus import Corpus, from_archive, from_interpreter, train_tokenizer  # noqa: E402
from evaluation import evaluate  # noqa: E402
from miniengine.drafter import Drafter  # noqa: E402
from miniengine.loader import checkpoint_digest, load  # noqa: E402
from miniengine.model import Model  # noqa: E402
from recipe import Recipe  # noqa: E402
from requests_set import build  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from training import continuations, start_small, stream_of, train_drafters, train_target  # noqa: E402

ALGORITHMS = ("DFLASH2", "DSPARK")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for resumable state")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--text", type=Path, help="archive written by --pack, instead of this interpreter's library")
    parser.add_argument("--pack", type=Path, help="only write this interpreter's library to an archive")
    parser.add_argument("--smoke", action="store_true", help="a few steps of every stage")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="recipe numbers to change")
    parser.add_argument("--prompts", type=int, default=96, help="held-out prompts to evaluate and to write")
    return parser.parse_args()


def pack(path: Path) -> None:
    """Write the running interpreter's sources and its version to an archive."""
    corpus = from_interpreter()
    with tarfile.open(path, "w:xz") as archive:
        for name, text in [("VERSION", corpus.python), *corpus.files.items()]:
            info, data = tarfile.TarInfo(name), text.encode()
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def recipe_of(options: argparse.Namespace) -> Recipe:
    """The recipe with --smoke and --set applied."""
    recipe = Recipe().smoke() if options.smoke else Recipe()
    for change in options.set:
        name, _, value = change.partition("=")
        recipe = dataclasses.replace(recipe, **{name: type(getattr(recipe, name))(value)})
    return recipe


def stored(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Weights as they ship: bfloat16."""
    return {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}


def tokens_of(corpus: Corpus, tokenizer: Tokenizer) -> torch.Tensor:
    """The training files as one stream."""
    texts = [text for _, text in corpus.part(held_out=False)]
    return stream_of((e.ids for e in tokenizer.encode_batch(texts)), 0)


def write_checkpoint(out: Path, model: Model, drafters: dict[str, Drafter], tokenizer: Tokenizer) -> None:
    """config.json, tokenizer.json and the three weight files."""
    shapes = {name: dataclasses.asdict(d.config) for name, d in drafters.items()}
    config = {"model": dataclasses.asdict(model.config), "drafters": shapes}
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    save_file(stored(model), out / "target.safetensors")
    for name, drafter in drafters.items():
        save_file(stored(drafter), out / f"drafter_{name.lower()}.safetensors")
    for path in out.glob("*.safetensors"):
        path.chmod(0o644)


class Laps:
    """Seconds and device of every stage, kept with the work so that resumed runs add up."""

    def __init__(self, folder: Path, device: str) -> None:
        self.path, self.mark = folder / "stages.json", time.perf_counter()
        self.device = torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
        self.stages: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def lap(self, stage: str) -> None:
        """End a stage; one that had nothing left to do keeps the record of the run that did it."""
        seconds, self.mark = time.perf_counter() - self.mark, time.perf_counter()
        known = self.stages.get(stage)
        if known is None or seconds > 5:
            total = seconds + (known["seconds"] if known else 0.0)
            self.stages[stage] = {"device": self.device, "seconds": round(total, 1)}
            self.path.write_text(json.dumps(self.stages, indent=1) + "\n")
        print(f"-- {stage}: {seconds:.1f} s", flush=True)


def write_manifest(recipe: Recipe, corpus: Corpus, out: Path, stages: dict[str, dict[str, Any]]) -> None:
    """What the files are and where they come from."""
    files = sorted(p for p in out.iterdir() if p.suffix in (".json", ".safetensors") and p.name != "manifest.json")
    manifest: dict[str, Any] = {
        "digest": checkpoint_digest(out),
        "files": {p.name: {"sha256": hashlib.sha256(p.read_bytes()).hexdigest(), "bytes": p.stat().st_size}
                  for p in files},
        "text": {"source": "Python standard library, *.py", "python": corpus.python, "files": len(corpus.files),
                 "sha256": corpus.digest},
        "recipe": dataclasses.asdict(recipe),
        "torch": torch.__version__,
        "stages": stages,
        "date": datetime.now(timezone.utc).date().isoformat(),
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def report(recipe: Recipe, out: Path, requests: list[dict[str, Any]]) -> None:
    """Evaluate the written files with the engine on the CPU; evaluation.json and a table on stdout."""
    prompts, limit, rows = [r["input_ids"] for r in requests], requests[0]["max_new_tokens"], []
    plain = evaluate(load(out, None, torch.float32)[0], None, prompts, 0, limit)
    print(f"AR: repeated share {plain['repeated_share']:.2f}", flush=True)
    for name in ALGORITHMS:
        model, drafter = load(out, name, torch.float32)
        for m in recipe.blocks:
            result = evaluate(model, drafter, prompts, m, limit)
            same = sum(a == b for a, b in zip(result.pop("outputs"), plain["outputs"], strict=True))
            rows.append({"drafter": name, "draft_positions": m, **result, "outputs_equal_to_ar": same})
            print(f"{name} {m}: tau {result['tau']:.2f} oracle {result['oracle_tau']:.2f} equal {same}", flush=True)
    (out / "evaluation.json").write_text(json.dumps({"prompts": len(prompts), "rows": rows}, indent=1) + "\n")


def main() -> int:
    """Run every stage."""
    options = arguments()
    if options.pack:
        pack(options.pack)
        return 0
    recipe = recipe_of(options)
    for folder in (options.work, options.out):
        folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(recipe.seed)
    torch.set_float32_matmul_precision("high")
    laps = Laps(options.work, options.device)
    corpus = from_archive(options.text) if options.text else from_interpreter()
    saved = options.work / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(saved)) if saved.exists() else train_tokenizer(corpus, recipe.vocabulary)
    tokenizer.save(str(saved))
    stream = tokens_of(corpus, tokenizer)
    print(f"{len(corpus.files)} files, {len(stream)} training tokens, text sha256 {corpus.digest}", flush=True)
    laps.lap("tokenizer")
    model = Model(recipe.model(), recipe.drafter(ALGORITHMS[0]).target_layer_ids)
    start_small(model)
    model.to(options.device)
    train_target(recipe, model, stream, options.work)
    model.load_state_dict({k: v.to(torch.float32) for k, v in stored(model).items()})  # what ships is what drafts
    model.requires_grad_(False)
    laps.lap("target")
    ids = continuations(recipe, model, stream, options.work, 192 if options.device == "cpu" else 2048)
    laps.lap("continuations")
    drafters = {name: Drafter(recipe.drafter(name), model.config).to(options.device) for name in ALGORITHMS}
    train_drafters(recipe, model, drafters, ids, options.work)
    laps.lap("drafters")
    write_checkpoint(options.out, model, drafters, tokenizer)
    write_manifest(recipe, corpus, options.out, laps.stages)
    requests = build(corpus, tokenizer, options.prompts, 96, recipe.seed)
    (options.out / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in requests))
    torch.set_num_threads(1)
    report(recipe, options.out, requests)
    laps.lap("evaluation")
    return 0


if __name__ == "__main__":
    sys.exit(main())
