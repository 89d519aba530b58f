"""Build a stand-in of full size from a core and its drafters, and compare its greedy text with the core's.

    python examples/testbed/standin.py build standin-dense8b --core DIR --drafters DIR --out DIR [--device cuda]
    python examples/testbed/standin.py check --core DIR --full DIR --prompts FILE [--device cuda] [--dtype bfloat16]

The sizes stand in `profiles/models/` and `profiles/drafters/`. The 27B one takes 54 GB: give --out in memory
(/dev/shm) where the disk is slow.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from specpilot_cli.testbed.chat import chat_encoder  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, greedy  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridModel  # noqa: E402
from specpilot_cli.testbed.nn.standin import write_standin  # noqa: E402

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROFILES = HERE.parents[1] / "profiles"


def sizes(path: Path) -> dict[str, Any]:
    """The [config] table of a profile."""
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["config"]
    return found


def build(options: argparse.Namespace) -> None:
    """Target first; its drafters' feature layers follow it."""
    started, full = time.perf_counter(), sizes(options.profiles / "models" / f"{options.name}.toml")
    say = {"seed": options.seed, "device": options.device, "say": lambda text: print(text, flush=True)}
    layers = write_standin(options.core, full, options.out / "target", **say)
    print(f"target: {time.perf_counter() - started:.1f} s, core layers at {layers}", flush=True)
    for path in sorted((options.profiles / "drafters").glob(f"{options.name}-*.toml")):
        drafter = path.stem.removeprefix(f"{options.name}-")
        if options.drafters and (options.drafters / drafter).is_dir():
            folder = options.drafters / drafter
            place = {"target_layers": layers, "depth": full["num_hidden_layers"]}
            write_standin(folder, sizes(path), options.out / drafter, **place, **say)
            print(f"{drafter}: done after {time.perf_counter() - started:.1f} s", flush=True)


def prompts_of(options: argparse.Namespace) -> list[list[int]]:
    """Token ids of a JSON file (lists, or such lists by name), or of every *.jsonl through the core's chat template."""
    if options.prompts.is_file():
        found: list[list[int]] | dict[str, list[list[int]]] = json.loads(options.prompts.read_text())
        listed = found if isinstance(found, list) else [ids for some in found.values() for ids in some]
        return listed[: options.count]
    encode, rows = chat_encoder(options.core), []
    for path in sorted(options.prompts.glob("*.jsonl")):
        rows += [encode(json.loads(line)["prompt"]) for line in path.read_text(encoding="utf-8").splitlines()]
    return rows[:: max(1, len(rows) // options.count)][: options.count]


@torch.no_grad()
def check(options: argparse.Namespace) -> None:
    """Greedy texts of both; where they part, how close the core's two best tokens are there (logits)."""
    prompts = prompts_of(options)
    texts, models = [], []
    for folder in (options.core, options.full):
        model = load(folder, options.device, getattr(torch, options.dtype))
        assert isinstance(model, DenseModel | HybridModel)
        models.append(model)
        room = max(map(len, prompts)) + options.new_tokens
        texts.append(Generator(model, len(prompts), room).run(prompts, options.new_tokens, greedy, None))
    gaps, largest = [], []
    for prompt, one, other in zip(prompts, *texts, strict=True):
        hidden, _ = models[0](torch.tensor([prompt + one], device=options.device))
        best = F.linear(hidden[0, len(prompt) - 1 : -1], models[0].head).float().topk(2).values
        largest.append(float(best[:, 0].min()))
        if one != other:
            at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            gaps.append({"at": at, "gap": round(float(best[at, 0] - best[at, 1]), 4)})
    found = {"texts": len(prompts), "different": len(gaps), "where": gaps, "smallest_top_logit": min(largest)}
    print(json.dumps(found, indent=1))


def main() -> int:
    """Build or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("build")
    one.add_argument("name", help="a file of profiles/models/ with a [config] table")
    one.add_argument("--core", type=Path, required=True)
    one.add_argument("--drafters", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--seed", type=int, default=0)
    one.add_argument("--profiles", type=Path, default=PROFILES, help="folder with models/ and drafters/")
    one.set_defaults(run=build)
    two = commands.add_parser("check")
    two.add_argument("--core", type=Path, required=True)
    two.add_argument("--full", type=Path, required=True)
    two.add_argument("--prompts", type=Path, required=True, help="a folder of *.jsonl, or JSON: token id lists")
    two.add_argument("--count", type=int, default=32, help="prompts to compare")
    two.add_argument("--new-tokens", type=int, default=64)
    two.add_argument("--dtype", default="bfloat16")
    two.set_defaults(run=check)
    options = parser.parse_args()
    options.run(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
