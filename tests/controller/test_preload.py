"""Once an engine runs, the gate reads no code of its own from disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
from specpilot_cli.core.preload import preload_gate

preload_gate()

import random, sys
from support.scripted import Script, Stage, design, requests, start_body


class Refuse:
    def find_spec(self, name, path=None, target=None):
        raise ImportError(f"{name} was read after the start")


sys.meta_path.insert(0, Refuse())

from specpilot_cli.controller.run import PairRun

noise = random.Random(0)
asked = requests(12)
stage = Stage(*(Script(lambda p, n, t=t: t * noise.lognormvariate(0, 0.01)) for t in (0.1, 0.08)))
start = start_body(asked, design=design(starts=4))
run = PairRun(start, asked, stage.launch, save=stage.saved.append, instruments=stage.instruments, at_once=True)
print(run.run()[0].verdict.value)
"""


def test_a_whole_pair_run_imports_nothing_after_the_start(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(tests), str(tests.parent)))}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout == "PROMOTED\n", done.stderr
