"""Per-request block lengths, replayed: `python block_lengths.py SHORT LONG [--nodes 32] [--headroom 2.0]`.

SHORT and LONG are dense recordings of the same requests at different numbers of positions (a shorter block of a
bidirectional drafter gives other scores, so each length needs its own recording). Prints tokens a step and drafted
positions a step for every fixed length and for the rule of `specpilot_cli.replay.block_length`.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np

from specpilot_cli.replay.accept import reach
from specpilot_cli.replay.block_length import BlockRule, confidence, next_length, recent
from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.chain import chain
from specpilot_cli.replay.lattice_file import LatticeReader


@dataclass
class Recorded:
    """Of one length, per request id: accepted drafts and expected drafts at every offset."""

    accepted: dict[str, np.ndarray]
    sure: dict[str, np.ndarray]


def read(name: str, nodes: int) -> tuple[int, Recorded]:
    """Replay one recording step by step."""
    reader, found = LatticeReader(name), Recorded({}, {})
    for block in reader.blocks():
        drafts = (reach(best_first(block, nodes), block.continuation) <= nodes).sum(1).astype(np.int32)
        expected = confidence(chain(block, block.positions).scores)
        for index, text in enumerate(block.texts):
            mine = block.request == index
            found.accepted[text.id], found.sure[text.id] = drafts[mine], expected[mine]
    return reader.body.positions, found


def walk(lengths: dict[int, Recorded], name: str, rule: BlockRule) -> tuple[int, int, int]:
    """Steps, tokens and drafted positions of one request under a rule."""
    mean, sure = np.full(1, 4, dtype=np.float32), np.zeros(1, dtype=np.float32)
    offset = steps = drafted = tokens = 0
    end = min(len(recorded.accepted[name]) for recorded in lengths.values())
    while offset < end:
        length = int(next_length(mean, sure, rule)[0])
        accepted = lengths[length].accepted[name][offset : offset + 1]
        mean, sure = recent(mean, accepted, rule), lengths[length].sure[name][offset : offset + 1]
        steps, drafted, tokens = steps + 1, drafted + length, tokens + int(accepted[0]) + 1
        offset += int(accepted[0]) + 1
    return steps, tokens, drafted


def main() -> int:
    """Fixed lengths, then the rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="+")
    parser.add_argument("--nodes", type=int, default=32)
    parser.add_argument("--headroom", type=float, nargs="*", default=[1.5, 2.0, 3.0])
    options = parser.parse_args()
    lengths = dict(read(name, options.nodes) for name in options.recordings)
    names = set.intersection(*(set(recorded.accepted) for recorded in lengths.values()))
    rules = [(f"always {length}", BlockRule(lengths=(length,))) for length in sorted(lengths)]
    rules += [(f"rule, headroom {h:g}", BlockRule(tuple(sorted(lengths)), h)) for h in options.headroom]
    for title, rule in rules:
        steps, tokens, drafted = np.sum([walk(lengths, name, rule) for name in sorted(names)], axis=0).tolist()
        print(f"{title}: {tokens / steps:.3f} tokens a step, {drafted / steps:.1f} positions a step ({steps} steps)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
