"""Written deployment files are ones that the product loads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from specpilot_cli.deployment import load_deployment

SCRIPT = Path(__file__).parents[2] / "examples" / "testbed" / "deployments.py"


def test_deployments_are_written_for_the_drafters_that_are_there(tmp_path: Path) -> None:
    for name in ("dflash2", "eagle3"):
        (tmp_path / "drafters" / name).mkdir(parents=True)
        (tmp_path / "drafters" / name / "config.json").write_text("{}")
    argv = [sys.executable, str(SCRIPT), "--target", str(tmp_path / "t"), "--drafters", str(tmp_path / "drafters")]
    argv += [
        "--gpu",
        "h200-sxm",
        "--requests",
        str(tmp_path / "r.jsonl"),
        "--widths",
        "1",
        "24",
        "--max-total-tokens",
        "4096",
        "--autoregressive",
        "--out",
        str(tmp_path / "d"),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    paths = [Path(line) for line in done.stdout.splitlines()]
    assert [p.stem.split("__")[1:4:2] for p in paths] == [
        ["dflash2", "r1"], ["dflash2", "r24"], ["eagle3", "r1"], ["eagle3", "r24"],
        ["ar", "r1"], ["ar", "r24"],
    ]  # fmt: skip
    loaded = [load_deployment(str(path)) for path in paths]
    assert [d.record.shape.concurrency for d in loaded] == [1, 24] * 3
    assert all(d.record.server_args[d.record.server_args.index("--max-total-tokens") + 1] == "4096" for d in loaded)
    assert all(str(tmp_path / "t") in d.record.server_args and d.requests == str(tmp_path / "r.jsonl") for d in loaded)
    plain = [any(arg.startswith("--speculative-") for arg in d.record.server_args) for d in loaded]
    assert plain == [True] * 4 + [False] * 2
    assert [d.record.drafter for d in loaded] == ["dflash2"] * 2 + ["eagle3"] * 2 + ["none"] * 2
