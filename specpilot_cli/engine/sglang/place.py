"""Where an SGLang server runs: interpreter, import path, caches, environment.

Three settings of the machine, not of the deployment, come from the caller's environment:

- `SPECPILOT_SGLANG_PYTHON`: interpreter that has SGLang's dependencies (default: the one that runs SpecPilot);
- `SPECPILOT_SGLANG_PATH`: folders to import dependencies from, after the worktree (`os.pathsep` between them);
- `SPECPILOT_SGLANG_CACHE`: a folder with compiled kernels (`~/.cache/sglang` of an earlier server) to start a new
  cache from. FlashInfer's part of it is used in place: its build files hold absolute paths, and a moved copy is
  compiled again, for minutes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.core.paths import cache_dir, share_dir
from specpilot_cli.worktrees.git import tree_id
from specpilot_cli.worktrees.locks import hold

ENV = "@env:"
SHAPE = "@shape:"
MODE = "@mode:"
MODES = ("server", "offline")
"""`sglang.launch_server`, or the offline Engine (`offline.py`)."""
PROBE_TIMEOUT_S = 60.0
_PROBE = """
import importlib.metadata as m, importlib.util as u, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
found = u.find_spec("sglang")
names = ("torch", "triton", "transformers", "sglang-kernel", "flashinfer-python", "apache-tvm-ffi")
print(json.dumps({"origin": found and found.origin, "python": sys.version.split()[0],
                  "packages": {n: version(n) for n in names}}))
"""


@dataclass(frozen=True)
class Arguments:
    """A deployment's arguments, resolved for this machine."""

    flags: tuple[str, ...]
    env: dict[str, str]
    """Engine settings that SGLang reads from the environment (`@env:SGLANG_NAME=VALUE`)."""
    mode: str = MODES[0]


def resolve(server_args: Sequence[str]) -> Arguments:
    """Split `@env:` and `@mode:` off and replace `@shape:NAME` by the folder `profiles/deployments/shapes/NAME`.

    Raises:
        UsageFault: a setting that is not one of SGLang's, an unknown mode, or an unknown shape.
    """
    flags, env, mode = [], {}, MODES[0]
    for arg in server_args:
        if arg.startswith(MODE):
            mode = arg.removeprefix(MODE)
            if mode not in MODES:
                raise UsageFault(f"There is no mode '{mode}'.", "", f"Known: {', '.join(MODES)}.")
        elif arg.startswith(ENV):
            name, _, value = arg.removeprefix(ENV).partition("=")
            if not name.startswith("SGLANG_") or not value:
                raise UsageFault(f"'{arg}' is no engine setting.", "", f"Write {ENV}SGLANG_NAME=VALUE.")
            env[name] = value
        else:
            flags.append(_shape(arg))
    return Arguments(tuple(flags), env, mode)


def _shape(arg: str) -> str:
    if not arg.startswith(SHAPE):
        return arg
    folder = share_dir("profiles") / "deployments" / "shapes" / arg.removeprefix(SHAPE)
    if not (folder / "config.json").is_file():
        known = ", ".join(sorted(path.name for path in folder.parent.glob("*")))
        raise UsageFault(f"There is no shape '{arg.removeprefix(SHAPE)}'.", "", f"Known: {known}.")
    return str(folder)


def package_root(worktree: Path) -> Path:
    """The folder to import `sglang` from: the worktree of a stock repository, or `python/` in a clone.

    Raises:
        EnvironmentUnusable: there is no SGLang in the worktree.
    """
    for folder in (worktree, worktree / "python"):
        if (folder / "sglang" / "launch_server.py").is_file():
            return folder.resolve()
    raise EnvironmentUnusable(
        f"{worktree} is not an SGLang worktree.",
        "It has no sglang/launch_server.py.",
        "Make one: specpilot stock init DIR --engine sglang-0.5.20",
    )


def python() -> str:
    """The interpreter that runs the engine."""
    return os.environ.get("SPECPILOT_SGLANG_PYTHON") or sys.executable


def kernel_cache(worktree: Path) -> Path:
    """Folder for compiled kernels, one for each engine tree, so that no arm runs what another arm compiled.

    Seeded from `SPECPILOT_SGLANG_CACHE` when it is made.
    """
    folder = cache_dir() / "sglang" / tree_id(worktree, untracked_files="include")[:16]
    with hold(folder.with_name(folder.name + ".lock"), wait_s=60):
        if not folder.exists():
            seed, partial = os.environ.get("SPECPILOT_SGLANG_CACHE"), folder.with_name(folder.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            if seed:
                shutil.copytree(seed, partial, symlinks=True, ignore=shutil.ignore_patterns("flashinfer", "pyc"))
            else:
                partial.mkdir(parents=True)
            partial.replace(folder)
    return folder


def environment(root: Path, cache: Path, settings: dict[str, str]) -> dict[str, str]:
    """Environment of the engine beyond `engine.process.engine_environment`."""
    seed = os.environ.get("SPECPILOT_SGLANG_CACHE")
    paths = [str(root), *filter(None, os.environ.get("SPECPILOT_SGLANG_PATH", "").split(os.pathsep))]
    return {
        "PYTHONPATH": os.pathsep.join(paths),
        # not beside the sources, where it would change the tree
        "PYTHONPYCACHEPREFIX": str(cache / "pyc"),
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
        "SGLANG_CACHE_DIR": str(cache),
        "SGLANG_JIT_CACHE_DIR": str(cache / "jit"),
        # /health otherwise decodes a token, also while requests are being timed
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        **({_SKIP: "1"} if os.environ.get(_SKIP) else {}),
        **({"FLASHINFER_WORKSPACE_BASE": str(Path(seed).resolve())} if seed else {}),
        **settings,
    }


_SKIP = "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"


def probe(root: Path, env: dict[str, str]) -> dict[str, Any]:
    """Interpreter and package versions of the engine, after checking that `sglang` comes from `root`.

    Raises:
        EnvironmentUnusable: the interpreter does not run, or another SGLang comes first.
    """
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")}
    argv = [python(), "-c", _PROBE]
    try:
        done = subprocess.run(
            argv, env={**kept, **env}, cwd="/", capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise EnvironmentUnusable(f"{python()} does not run.", str(error), "Set SPECPILOT_SGLANG_PYTHON.") from None
    origin = found.pop("origin")
    if origin is None or Path(origin).resolve() != (root / "sglang" / "__init__.py").resolve():
        raise EnvironmentUnusable("Python imports another SGLang than the worktree's.", f"It finds {origin}.")
    return {
        **found,
        "sglang_settings": {k: v for k, v in sorted(env.items()) if k.startswith("SGLANG_") and "CACHE" not in k},
    }
