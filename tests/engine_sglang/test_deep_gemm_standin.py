"""The stand-in for `deep_gemm`: importable under one setting, without names, and only where no real one loads.

The slow test reads the SGLang that `SGLANG_TEST_PYTHON` (as for `test_true_engine.py`) can import.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from specpilot_cli.engine.sglang.deep_gemm_standin import SWITCH, environment, write_standin

ENGINE = os.environ.get("SGLANG_TEST_PYTHON")


def run(code: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """A new Python with `changes` to the environment."""
    started = {name: value for name, value in os.environ.items() if name not in (SWITCH, "PYTHONPATH")} | changes
    return subprocess.run([sys.executable, "-c", code], env=started, capture_output=True, text=True, check=False)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on this process's import path and its children's, the place for a `deep_gemm` of a test's own."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    (tmp_path / "site").mkdir()
    return tmp_path / "site"


def test_it_imports_and_has_no_names(tmp_path: Path) -> None:
    found = environment(tmp_path / "made")
    assert found[SWITCH] == "0"
    assert run("import deep_gemm; assert deep_gemm.__version__ == 'stand-in'", **found).returncode == 0
    for use in (
        "import deep_gemm; deep_gemm.get_num_sms()",
        "from deep_gemm import fp8_gemm_nt",
        "from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor",
    ):
        assert run(use, **found).returncode == 1
    assert "deep_gemm.get_num_sms: this deep_gemm is a stand-in" in run(
        "import deep_gemm; deep_gemm.get_num_sms", **found
    ).stderr  # fmt: skip
    assert run("import deep_gemm; assert not hasattr(deep_gemm, 'set_pdl')", **found).returncode == 0


@pytest.mark.parametrize("value", [None, "1", "true", ""])
def test_without_the_switch_it_is_a_package_that_is_not_there(tmp_path: Path, value: str | None) -> None:
    folder = str(write_standin(tmp_path))
    changes = {"PYTHONPATH": folder} | ({} if value is None else {SWITCH: value})
    guarded = "try:\n    import deep_gemm\nexcept ImportError as e:\n    print(e)"
    done = run(guarded, **changes)
    assert done.returncode == 0 and f"{SWITCH}=0" in done.stdout


def test_a_real_one_is_left_alone(bare: Path, tmp_path: Path) -> None:
    (bare / "deep_gemm.py").write_text("__version__ = '0.2.0'\n")
    assert environment(tmp_path / "made") == {}
    assert not (tmp_path / "made").exists()


def test_one_that_does_not_load_is_replaced(bare: Path, tmp_path: Path) -> None:
    (bare / "deep_gemm.py").write_text("raise RuntimeError('undefined symbol')\n")
    found = environment(tmp_path / "made")
    assert found["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "made"), str(bare)]
    assert run("import deep_gemm; print(deep_gemm.__version__)", **found).stdout == "stand-in\n"


def test_the_command_prints_what_to_set(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "specpilot_cli.engine.sglang.deep_gemm_standin", str(tmp_path / "made")]
    started = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    said = subprocess.run(command, env=started, capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == [f"{SWITCH}=0", f"PYTHONPATH={tmp_path / 'made'}"]


def loading(body: list[ast.stmt], guards: tuple[str, ...] = ()) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """Imports of `deep_gemm` that run when a module loads: line, what, and the `if` and `try` around each."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            if not getattr(node, "level", 0) and any(name.split(".")[0] == "deep_gemm" for name in named):
                yield node.lineno, ast.unparse(node), guards
        elif isinstance(node, ast.If):
            if ast.unparse(node.test) != "TYPE_CHECKING":
                yield from loading(node.body, (*guards, ast.unparse(node.test)))
            yield from loading(node.orelse, guards)
        elif isinstance(node, ast.Try):
            yield from loading(node.body, (*guards, "try"))
            for part in (*(h.body for h in node.handlers), node.orelse, node.finalbody):
                yield from loading(part, guards)
        elif isinstance(node, ast.ClassDef | ast.With):
            yield from loading(node.body, guards)


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE, reason="SGLANG_TEST_PYTHON is not set")
def test_sglang_has_one_import_that_needs_it() -> None:
    assert ENGINE
    locate = "import importlib.util; print(importlib.util.find_spec('sglang').submodule_search_locations[0])"
    root = Path(subprocess.run([ENGINE, "-c", locate], capture_output=True, text=True, check=True).stdout.strip())
    needing, optional = set(), set()
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8", errors="replace")
        for line, what, guards in loading(ast.parse(text).body) if "deep_gemm" in text else ():
            free = {"try", "ENABLE_JIT_DEEPGEMM"} & set(guards)
            (optional if free else needing).add((str(path.relative_to(root)), line, what))
    assert needing == {("srt/layers/attention/dsa_backend.py", 98, "import deep_gemm")}
    assert {what for _, _, what in optional} > {"import deep_gemm"}  # the scan sees more than plain imports
