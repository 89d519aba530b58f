"""Git worktrees that the real miniengine adapter starts, with the fake engine in them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")
SHAPE = "[shape]\nconcurrency = 1\nmax_new_tokens = {tokens}\n"


def _git(folder: Path, *args: str) -> None:
    subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True)


def _commit(folder: Path, behaviour: dict[str, Any], message: str) -> Path:
    (folder / "fake.json").write_text(json.dumps(behaviour))
    _git(folder, "add", "-A")
    _git(folder, "commit", "--allow-empty", "-q", "-m", message)
    return folder


def stock_worktree(folder: Path, **behaviour: Any) -> Path:
    """A fresh repository whose only commit is stock. `behaviour`: fields of `fake_engine.Behaviour`."""
    package = folder / "miniengine"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    shutil.copy(FAKE_ENGINE, package / "server.py")
    _git(folder, "init", "-q", "-b", "main")
    return _commit(folder, behaviour, "stock")


def candidate_worktree(stock: Path, folder: Path, **behaviour: Any) -> Path:
    """A worktree grown from stock with other behaviour."""
    _git(stock, "worktree", "add", "-q", "--detach", str(folder))
    return _commit(folder, behaviour, "candidate")


def request_file(path: Path, count: int, tokens: int = 12, benchmarks: int = 1) -> Path:
    """`count` develop and `count` sealed requests."""
    lines = []
    for split in ("develop", "sealed"):
        for n in range(count):
            ids = [1 + n, 7 * n + 3, 11 + (split == "sealed")]
            line = {"id": f"{split}-{n}", "split": split, "prompt": str(ids), "input_ids": ids}
            lines.append(json.dumps({**line, "max_new_tokens": tokens, "benchmark": f"bench-{n % benchmarks}"}))
    path.write_text("\n".join(lines) + "\n")
    return path


def deployment_file(folder: Path, requests: Path, tokens: int = 12) -> Path:
    """A deployment of the fake engine."""
    flags = '["--speculative-algorithm", "DFLASH2", "--speculative-num-draft-tokens", "8"]'
    text = (
        'id = "fake"\nengine = "miniengine"\nmodel = "fake"\ndrafter = "dflash2"\ngpu = "cpu"\n'
        f'requests = "{requests}"\nserver_args = {flags}\n\n' + SHAPE.format(tokens=tokens)
    )
    path = folder / "fake.toml"
    path.write_text(text)
    return path
