"""The entry `gdn-path-verify`: what it touches, its contracts, and its backends in the real SGLang 0.5.20.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from specpilot_cli.core.paths import share_dir
from specpilot_cli.engine.sglang.cpu_stubs import write_stubs
from specpilot_cli.engine.sglang.source import init_sglang
from specpilot_cli.memory.apply import materialise, plan
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.room import open_room
from specpilot_cli.memory.variants import load_variants, server_words

pytest.importorskip("triton")

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "gdn-path-verify"
OURS = "sglang/srt/layers/attention/linear/gdn_commit"
PYTHON, WHEEL = os.environ.get("SGLANG_TEST_PYTHON"), os.environ.get("SGLANG_TEST_WHEEL")
needs_wheel = pytest.mark.skipif(not WHEEL, reason="SGLANG_TEST_WHEEL names no wheel of SGLang 0.5.20")


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    assert entry.requires == ("gdn-commit",) and entry.status == "unmeasured" and entry.delta.vary == ()
    assert len([path for path in entry.delta.paths if not path.startswith(OURS)]) == 3, "two backends and the pool"
    assert server_words([variants], []) == ()
    assert server_words([variants], ["tree=path"]) == ("@env:SGLANG_GDN_TREE=path",)


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree that the entry reproduces."""
    folder = tmp_path_factory.mktemp("gdn-path-verify")
    stock, _ = init_sglang(folder / "stock", wheel=Path(str(WHEEL)))
    made = plan(open_room(None), ("gdn-path-verify",), stock.path)
    assert made.reproduces, made.first_difference
    materialise(made, folder / "patched")
    return folder / "patched"


@pytest.mark.slow
@needs_wheel
def test_contracts_in_the_tree_that_it_gives(patched: Path) -> None:
    assert contract_fault(ENTRY, patched) is None

    # each of them can fail: a sibling for a parent, the newest tap first, a stale window, a layer's neighbour
    kernels, rows = f"{OURS}/tree_kernels.py", f"{OURS}/tree_rows.py"
    for path, old, new, test in (
        (kernels, "row == parent, found, 0", "row == parent - 1, found, 0", "test_every_path"),
        (kernels, "one = _above(tree, row)\n", "one = row - 1\n", "test_every_path"),
        (kernels, "acc += oldest * ", "acc += old * ", "test_every_path"),
        (
            kernels,
            "three, two, one = end - 2, end - 1, end\n",
            "three, two, one = end - 3, end - 2, end - 1\n",
            "test_",
        ),
        (rows, "track_slots, track_last, steps", "track_slots, last, steps", "test_every_path"),
        (f"{OURS}/native.py", "place * source.layer", "(place + 1) % 2 * source.layer", "test_the_verify_launch"),
        (f"{OURS}/gdn_tree/triton_path.py", "COLUMNS = 32", "COLUMNS = 16", "test_vendored"),
    ):
        file, kept = patched / path, (patched / path).read_bytes()
        assert kept.count(old.encode()) == 1, old
        file.write_bytes(kept.replace(old.encode(), new.encode()))
        fault = str(contract_fault(ENTRY, patched))
        file.write_bytes(kept)
        assert test in fault, old


@pytest.mark.slow
@needs_wheel
@pytest.mark.skipif(not PYTHON, reason="SGLANG_TEST_PYTHON names no interpreter with SGLang's dependencies")
@pytest.mark.parametrize("checks", ["gdn_path_engine_checks.py", "gdn_commit_engine_checks.py"])
def test_in_the_real_engine(patched: Path, tmp_path: Path, checks: str) -> None:
    """Chains through the tree's kernels; and, without its switch, all that `gdn-commit` promises."""
    stubs = write_stubs(tmp_path / "stubs")
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    env |= {"PYTHONPATH": os.pathsep.join((str(patched), str(stubs), str(HERE)))}
    env |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "SGLANG_JIT_CACHE_DIR": str(tmp_path / "jit")}
    argv = [
        str(PYTHON),
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--noconftest",
        "-c",
        os.devnull,
        "-W",
        "ignore",
    ]
    argv += ["--rootdir", str(tmp_path), str(HERE / checks)]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0 and "passed" in done.stdout, done.stdout[-3000:] + done.stderr[-1000:]
    assert "skipped" not in done.stdout
