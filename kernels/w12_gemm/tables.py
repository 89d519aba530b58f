"""The README's tables from one result of `bench.py`: `python tables.py results/FILE.json`.

A cell is what `op.choose` takes for the shape and row count; the rule stands here once more because the file is read
where there is no GPU.
"""

import json
import math
import sys
from pathlib import Path

ROWS = (1, 8, 16, 32, 48, 64, 96, 128, 192, 256)
WHOLE_TILES = {"qkv", "gdn_in"}  # 112 and 128 tiles of 128 channels on 132 multiprocessors
MODELS = {"27B": ("gate_up", "down", "qkv", "o", "gdn_in"), "8B": ("8b_gate_up", "8b_down", "8b_qkv", "8b_o")}
LARGE = ("gate_up", "down", "qkv", "gdn_in")


def chosen(shape: str, m: int, mode: str, view: bool = False) -> str:
    """Candidate name of `op.choose`'s variant."""
    if view:
        return f"view6/{mode}"
    if m > 64:
        return f"tall/{mode}"
    slim = mode == "early" and m <= 32 and shape in WHOLE_TILES
    return f"{'slim6' if slim else 'wide4'}/{mode}"


class Results:
    """Medians by shape, rows and candidate."""

    def __init__(self, path: Path) -> None:
        self.body = json.loads(path.read_text())
        self.median = {(t["shape"], t["rows"], t["candidate"]): t["median_us"] for t in self.body["timings"]}
        self.floor = {(t["shape"], t["rows"]): t["floor_us"] for t in self.body["timings"]}

    def ratio(self, shape: str, m: int, mode: str) -> float:
        return float(self.median[shape, m, "cublas"] / self.median[shape, m, chosen(shape, m, mode)])

    def table(self, mode: str) -> str:
        lines = [f"| N × K | {' | '.join(map(str, ROWS))} |", "|---" * (len(ROWS) + 1) + "|"]
        for shape in (s for names in MODELS.values() for s in names):
            cells = [
                f"{self.median[shape, m, chosen(shape, m, mode)]:.1f} ({self.ratio(shape, m, mode):.2f})" for m in ROWS
            ]
            lines.append(f"| {shape} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def view_table(self) -> str:
        rows = (1, 8, 16, 32, 48, 64)
        lines = [f"| view / exact | {' | '.join(map(str, rows))} |", "|---" * (len(rows) + 1) + "|"]
        for shape in (s for names in MODELS.values() for s in names):
            cells = []
            for m in rows:
                view, exact = self.median[shape, m, "view6/early"], self.median[shape, m, chosen(shape, m, "early")]
                cells.append(f"{view:.1f} ({view / exact:.2f})")
            lines.append(f"| {shape} | {' | '.join(cells)} |")
        return "\n".join(lines)

    def goals(self, mode: str) -> list[str]:
        measured = sorted({m for _, m, _ in self.median})
        few = [m for m in measured if m <= 32]

        def mean(shapes: tuple[str, ...]) -> float:
            logs = [math.log(self.ratio(s, m, mode)) for s in shapes for m in few]
            return math.exp(sum(logs) / len(logs))

        every = MODELS["27B"] + MODELS["8B"]
        least = {s: min(self.ratio(s, m, mode) for m in few) for s in every}
        floors = {s: 100 * self.floor[s, 8] / self.median[s, 8, chosen(s, 8, mode)] for s in MODELS["27B"]}
        flat = {s: self.median[s, 48, chosen(s, 48, mode)] / self.median[s, 1, chosen(s, 1, mode)] for s in every}
        return [
            f"geometric mean, 1 to 32 rows: 27B {mean(MODELS['27B']):.2f}, all nine {mean(every):.2f}",
            "least ratio, 1 to 32 rows: " + ", ".join(f"{s} {v:.2f}" for s, v in least.items()),
            "% of the byte floor at 8 rows: " + ", ".join(f"{s} {v:.0f}" for s, v in floors.items()),
            "time at 48 rows over 1 row: " + ", ".join(f"{s} {v:.2f}" for s, v in flat.items()),
            "ratio at 64 rows: " + ", ".join(f"{s} {self.ratio(s, 64, mode):.2f}" for s in every),
        ]


if __name__ == "__main__":
    results = Results(Path(sys.argv[1]))
    for kind in ("plain", "early"):
        print(f"\n{kind}\n\n{results.table(kind)}\n")
        print("\n".join(results.goals(kind)))
    print(f"\n{results.view_table()}")
