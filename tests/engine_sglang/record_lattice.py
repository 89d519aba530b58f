"""The memory entry `record-lattice`, unpacked: its new files, and the made-up engine of its contracts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from specpilot_cli.core.paths import share_dir

ENTRY = share_dir("memory") / "sglang-0.5.20" / "record-lattice"


def new_files(folder: Path) -> Path:
    """Write the files that the delta adds below `folder`, as a worktree has them."""
    name, lines = "", list[str]()
    for line in [*(ENTRY / "delta.patch").read_text(encoding="utf-8").splitlines(), "diff --git"]:
        if line.startswith("diff --git"):
            if name and lines:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            name, lines, added = "", [], False
        elif line.startswith("--- "):
            added = line == "--- /dev/null"
        elif line.startswith("+++ b/") and added:
            name = line.removeprefix("+++ b/")
        elif name and line.startswith("+"):
            lines.append(line[1:])
    return folder


def contracts() -> ModuleType:
    """The contracts' module: a made-up engine that drafts, verifies and records."""
    name = "record_lattice_contracts"
    spec = importlib.util.spec_from_file_location(name, ENTRY / "contracts" / "test_recorder.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module
