"""Record the lattices of a trained DFLASH2 or DSPARK drafter for `specpilot replay`, from the plain PyTorch modules.

    python examples/testbed/lattices.py --target DIR --drafter DIR --prompts DIR --out DIR [--rows 16]
    specpilot replay DIR -b all -n 1..64 -o replay.json

A lattice stands at every answer position and the answers go on behind their end token, so that every builder's own
steps can be walked and none is censored. The target's tokens are those of the plain module in the type of --dtype.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from specpilot_cli.artifacts.base import Source  # noqa: E402
from specpilot_cli.artifacts.replay_lattice import LatticeBody  # noqa: E402
from specpilot_cli.core.digest import sha256_file  # noqa: E402
from specpilot_cli.replay.lattice_file import LatticeWriter  # noqa: E402
from specpilot_cli.replay.steps import Steps, Text, join  # noqa: E402
from specpilot_cli.testbed.chat import chat_encoder  # noqa: E402
from specpilot_cli.testbed.nn.block_drafter import BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, greedy  # noqa: E402
from specpilot_cli.testbed.nn.lattice import recorded  # noqa: E402

GROUP = 16


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True, help="folder of *.jsonl")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=16, help="rows of a block")
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    return parser.parse_args()


def rows_of(options: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """Ids and token ids of all prompts."""
    encode, found = chat_encoder(options.target), []
    for path in sorted(options.prompts.glob("*.jsonl")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            found.append((row.get("id", f"{path.stem}-{number:04d}"), encode(row["prompt"])))
    return found


def header(options: argparse.Namespace, target: DenseModel, drafter: BlockDrafter) -> LatticeBody:
    """What the shards hold."""
    return LatticeBody(
        positions=drafter.config.proposals(options.rows), candidates=drafter.config.top_k,
        vocab_size=target.config.vocab_size, dense=True, drafter=drafter.config.algorithm,
        transitions="candidates" if drafter.config.algorithm == "DFLASH2" else "vocabulary",
        recorder=f"testbed's plain modules, {options.dtype}: own greedy text, a lattice at every answer position",
        new_tokens=options.new_tokens, deployment=None, server=None, requests=None,
    )  # fmt: skip


def main() -> int:
    """Record all prompts; what is in complete shards already is kept."""
    options = arguments()
    dtype = getattr(torch, options.dtype)
    target, drafter = (load(folder, options.device, dtype) for folder in (options.target, options.drafter))
    assert isinstance(target, DenseModel) and isinstance(drafter, BlockDrafter)
    named = (("target", options.target), ("drafter", options.drafter))
    inputs = tuple(Source(name=n, sha256=sha256_file(p / "model.safetensors")) for n, p in named)
    done = LatticeWriter.recorded_in(options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    writer = LatticeWriter(options.out, header(options, target, drafter), inputs=inputs)
    todo = [(name, prompt) for name, prompt in rows_of(options) if name not in done]
    behind = options.new_tokens + drafter.config.proposals(options.rows) + 2
    generator = Generator(target, GROUP, max(len(p) for _, p in todo) + behind) if todo else None
    for at in range(0, len(todo), GROUP):
        group, parts = todo[at : at + GROUP], []
        assert generator is not None
        answers = generator.run([p for _, p in group], behind, greedy, None)
        for (name, prompt), answer in zip(group, answers, strict=True):
            ids = prompt + answer
            arrays: dict[str, Any] = {
                key: value.numpy().astype(np.float32 if value.is_floating_point() else np.int32)
                for key, value in recorded(
                    drafter, target, ids, len(prompt), options.new_tokens - 1, options.rows
                ).items()
            }
            text = Text(name, np.array(ids, dtype=np.int32), len(prompt))
            parts.append(Steps(texts=(text,), request=np.zeros(len(arrays["offset"]), dtype=np.int32), **arrays))
        writer.append(join(parts))
        print(f"lattices: {min(at + GROUP, len(todo))} of {len(todo)} requests", flush=True)
    print(writer.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
