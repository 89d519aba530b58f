"""Kernel rooms as an agent sees them, with a small room in place of the real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.agent_lab import FakeGate, need_sandbox
from support.mini_repo import mini_repo, snapshot, write

from specpilot_cli.agents.shell import Runner
from specpilot_cli.agents.tools.base import Outcome, Tool
from specpilot_cli.agents.tools.toolbox import kernel_tools
from specpilot_cli.core.paths import PACKAGE
from specpilot_cli.worktrees import checkout
from specpilot_cli.worktrees.git import head_commit

ROOM = {
    "kernels/conftest.py": b"import sys\nfrom pathlib import Path\nsys.path.insert(0, str(Path(__file__).parent))\n",
    "kernels/_testing/inputs.py": b"VALUE = 3\n",
    "kernels/double/kernel.toml": b'id = "double"\ntitle = "Twice as much"\n',
    "kernels/double/README.md": b"# Double\n\n2x.\n",
    "kernels/double/op.py": b"def double(x):\n    return 2 * x\n",
    "kernels/double/reference.py": b"def double(x):\n    return x + x\n",
    "kernels/double/table.bin": b"\0\1\2",
    "kernels/double/results/large.json": b"{}",
    "kernels/double/test_double.py": (
        b"import pytest\nfrom _testing.inputs import VALUE\nfrom double import op, reference\n\n\n"
        b"def test_equal():\n    assert op.double(VALUE) == reference.double(VALUE)\n\n\n"
        b"@pytest.mark.gpu\ndef test_device():\n    pytest.skip('needs a CUDA device')\n"
    ),
}


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tool]:
    write(tmp_path / "share", ROOM)
    monkeypatch.setenv("SPECPILOT_SHARE", str(tmp_path / "share"))
    stock = mini_repo(tmp_path / "stock")
    checkout.add(stock, head_commit(stock), tmp_path / "worktree")
    return {tool.name: tool for tool in kernel_tools(tmp_path / "worktree", FakeGate(), Runner(), questions=1)}


def run_test(tools: dict[str, Tool], **arguments: str) -> Outcome:
    need_sandbox()
    return tools["test_kernel"].call({"room": "double", **arguments})


def put(tools: dict[str, Tool], name: str, content: str) -> None:
    assert not tools["write_file"].call({"path": f"work/{name}", "content": content}).is_error


def test_rooms_are_listed_and_read(tools: dict[str, Tool]) -> None:
    look = tools["list_kernels"]
    assert look.call({}).text == "double: Twice as much"
    shown = look.call({"room": "double"}).text
    assert shown.startswith("# Double") and shown.endswith(
        "Files: README.md, kernel.toml, op.py, reference.py, table.bin, test_double.py"
    )
    assert look.call({"room": "double", "file": "op.py"}).text == "def double(x):\n    return 2 * x\n"
    assert "binary" in look.call({"room": "double", "file": "table.bin"}).text


@pytest.mark.parametrize(
    "arguments",
    [
        {"room": "none"},
        {"room": "../kernels"},
        {"room": "_testing"},
        {"room": "double", "file": "../conftest.py"},
        {"room": "double", "file": "/etc/passwd"},
        {"room": "double", "file": "results/large.json"},
    ],
)
def test_nothing_but_rooms_can_be_read(tools: dict[str, Tool], arguments: dict[str, str]) -> None:
    assert tools["list_kernels"].call(arguments).is_error


def test_a_room_is_tested(tools: dict[str, Tool]) -> None:
    outcome = run_test(tools)
    assert outcome.text.startswith("exit code 0") and "1 passed, 1 skipped" in outcome.text, outcome.text


def test_an_agents_version_is_tested_against_the_rooms_contract(tools: dict[str, Tool], tmp_path: Path) -> None:
    before = snapshot(tmp_path / "share")
    put(tools, "op.py", "def double(x):\n    return 2 * x + 1\n")
    put(tools, "reference.py", "def double(x):\n    return 2 * x + 1\n")
    put(tools, "test_double.py", "def test_nothing():\n    pass\n")
    put(tools, "conftest.py", "raise SystemExit(0)\n")
    outcome = run_test(tools, folder="work")
    assert outcome.text.startswith("exit code 1") and "1 failed" in outcome.text
    assert "Not taken from your folder: conftest.py, reference.py, test_double.py." in outcome.text
    assert snapshot(tmp_path / "share") == before
    put(tools, "op.py", "def double(x):\n    return x << 1\n")
    assert "1 passed" in run_test(tools, folder="work", only="equal").text


def test_a_kernel_cannot_reach_out(tools: dict[str, Tool], tmp_path: Path) -> None:
    reach = f"import os\ndef double(x):\n    assert not os.path.exists({str(tmp_path / 'stock')!r})\n"
    put(tools, "op.py", f"{reach}    assert not os.path.exists({str(PACKAGE)!r})\n    return 2 * x\n")
    assert "1 passed" in run_test(tools, folder="work").text
    for folder in ("../stock", "/etc", "nowhere"):
        assert run_test(tools, folder=folder).is_error


@pytest.mark.slow
def test_a_real_room(tmp_path: Path) -> None:
    """The 12-bit codec's own tests pass inside the sandbox."""
    need_sandbox()
    stock = mini_repo(tmp_path / "stock")
    made = {tool.name: tool for tool in kernel_tools(stock, FakeGate(), Runner(), questions=1)}
    outcome = made["test_kernel"].call({"room": "w12_pack"})
    assert outcome.text.startswith("exit code 0"), outcome.text[-3000:]
