"""Lattices of whole texts, cut where each answer ends: `specpilot replay` then speaks of an engine that stops there.

    python examples/tree/until_end.py LATTICES --target DIR -o CUT
    specpilot replay CUT -b chain,best-first,ddtree,beam -n 32 -o replay.json

`examples/testbed/lattices.py` records on behind an answer's end. The engine's steps end with the one that brings the
end token, so those of later positions are left out; answers without one stay as they are.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from specpilot_cli.replay.lattice_file import LatticeReader, LatticeWriter  # noqa: E402
from specpilot_cli.replay.steps import Steps  # noqa: E402


def ends(steps: Steps, stops: list[int]) -> list[int]:
    """Of each request: the output token that ends it, counted from 0; more than any where none does."""
    found = []
    for text in steps.texts:
        at = np.flatnonzero(np.isin(text.tokens[text.prompt_tokens :], stops))
        found.append(int(at[0]) if len(at) else len(text.tokens))
    return found


def cut(steps: Steps, stops: list[int]) -> Steps:
    """The steps whose anchor comes before its answer's end."""
    last = np.array(ends(steps, stops), dtype=np.int64)
    return steps.take(steps.offset < last[steps.request])


def main() -> int:
    """Shard by shard."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lattices")
    parser.add_argument("--target", type=Path, required=True, help="its config.json has the end tokens")
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    stops = json.loads((options.target / "config.json").read_bytes())["eos_token_id"]
    reader = LatticeReader(options.lattices)
    options.out.mkdir(parents=True)
    header = reader.body.model_copy(
        update={"shards": (), "recorder": f"{reader.body.recorder}; cut at each answer's end"}
    )
    writer = LatticeWriter(options.out, header, inputs=(reader.source,))
    for steps in reader.blocks():
        writer.append(cut(steps, stops if isinstance(stops, list) else [stops]))
    print(writer.finish())
    return 0


if __name__ == "__main__":
    sys.exit(main())
