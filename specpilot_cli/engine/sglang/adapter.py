"""Starts an SGLang worktree as a server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, UsageFault
from specpilot_cli.engine.flags import autoregressive
from specpilot_cli.engine.miniengine.adapter import clear_bytecode
from specpilot_cli.engine.process import EngineProcess, free_port, one_cpu, one_gpu
from specpilot_cli.engine.sglang import place
from specpilot_cli.engine.sglang.server import SglangServer, first_cause

OURS = ("--host", "--port", "--nccl-port")
FP32_HEAD = "--enable-fp32-lm-head"
OFFLINE = Path(__file__).with_name("offline.py")
READY_TIMEOUT_S = 1200.0
"""Loading a large checkpoint and compiling kernels on first use take minutes."""


class SglangAdapter:
    """`engine.base.Adapter` for SGLang 0.5.20."""

    name = "sglang-0.5.20"

    def launch(
        self,
        worktree: Path,
        server_args: Sequence[str],
        *,
        log: Path,
        timeout_s: float = READY_TIMEOUT_S,
        device: int | None = None,
    ) -> SglangServer:
        """See `engine.base.Adapter.launch`.

        Args:
            server_args: SGLang's flags, verbatim; `@env:SGLANG_NAME=VALUE` sets one of its environment switches,
                `@shape:NAME` stands for a folder in `profiles/deployments/shapes/`, `@mode:offline` for SGLang's
                Engine in a process of its own instead of its HTTP server.
        """
        given = place.resolve(server_args)
        taken = [flag for flag in given.flags if flag.split("=")[0] in OURS]
        if taken:
            raise UsageFault(f"{taken[0]} is chosen by the adapter.", "Two servers must not share ports.")
        root = place.package_root(worktree)
        clear_bytecode(root / "sglang")
        env = place.environment(root, place.kernel_cache(worktree), given.env)
        cache = narrow_checkpoint_cache(flag_value(given.flags, "--model-path", "--model"))
        versions = {**place.probe(root, env), "mode": given.mode, **({"checkpoint_kv_cache": cache} if cache else {})}
        on_cpu = flag_value(given.flags, "--device") == "cpu"
        env |= {} if on_cpu else one_gpu(device)
        cpu = one_cpu(device) if on_cpu else None
        folder = TemporaryDirectory(prefix="specpilot-sglang-", ignore_cleanup_errors=True)
        try:
            return self._start(root, given, env, versions, folder, log, timeout_s, cpu)
        except BaseException:
            folder.cleanup()
            raise

    def _start(
        self,
        root: Path,
        given: place.Arguments,
        env: dict[str, str],
        versions: dict[str, Any],
        folder: TemporaryDirectory[str],
        log: Path,
        timeout_s: float,
        cpu: int | None,
    ) -> SglangServer:
        port, nccl = free_port(), free_port()
        argv: tuple[str, ...] = (place.python(), "-m", "sglang.launch_server", *given.flags, "--host", "127.0.0.1")
        if given.mode == "offline":
            argv = (place.python(), str(OFFLINE), *given.flags)
        argv = (*argv, "--port", str(port), "--nccl-port", str(nccl))
        shown = (*(f"{name}={value}" for name, value in sorted(given.env.items())), *argv)
        process = EngineProcess(argv, cwd=Path(folder.name), env=env, log=log, cpu=cpu)
        try:
            server = SglangServer(
                f"http://127.0.0.1:{port}",
                process,
                shown,
                folder=folder,
                launch=versions,
                vocab_size=vocab_size(given.flags),
            )
            process.wait_ready(server.healthy, timeout_s)
        except BaseException as error:  # also an interrupt: nothing that was started may stay
            process.kill()
            if isinstance(error, ExternalFailed):
                raise ExternalFailed(error.fact, first_cause(log) or error.reason, error.remedy) from None
            raise
        return server

    def scorer_args(self, server_args: Sequence[str]) -> tuple[str, ...]:
        """The same target, AR, with an FP32 LM head and without a prefix cache."""
        kept = [arg for arg in autoregressive(server_args) if not arg.startswith("@env:SGLANG_SIMULATE_")]
        added = [flag for flag in (FP32_HEAD, "--disable-radix-cache") if flag not in kept]
        return (*kept, *added)


def flag_value(flags: Sequence[str], *names: str) -> str | None:
    """Value of the last of the named flags (`--flag value`, `--flag=value`)."""
    found = None
    for at, word in enumerate(flags):
        name, equals, value = word.partition("=")
        if name in names:
            found = value if equals else (flags[at + 1] if at + 1 < len(flags) else None)
    return found


def config_of(path: str | None) -> dict[str, Any] | None:
    """The `config.json` of a model folder; None where the path is no folder here.

    Raises:
        EnvironmentUnusable: it is damaged.
    """
    try:
        found = json.loads((Path(path) / "config.json").read_bytes()) if path else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise EnvironmentUnusable(f"{path}/config.json cannot be read.", str(error)) from None
    return found if isinstance(found, dict) else None


def narrow_checkpoint_cache(path: str | None) -> str | None:
    """KV-cache format that a quantised checkpoint asks for; `--kv-cache-dtype auto` follows it without saying so."""
    config = (config_of(path) or {}).get("quantization_config") or {}
    try:
        hints = json.loads((Path(path or "") / "hf_quant_config.json").read_bytes())["quantization"]
    except (OSError, ValueError, KeyError, TypeError):
        hints = {}
    found = hints.get("kv_cache_quant_algo") or config.get("kv_cache_quant_algo") or config.get("kv_cache_scheme")
    return str(found) if found else None


def vocab_size(flags: Sequence[str]) -> int | None:
    """Vocabulary size of the target (text part of a multimodal one); None where it is not known here."""
    config = config_of(flag_value(flags, "--model-path", "--model")) or {}
    value = config.get("text_config", config).get("vocab_size")
    return value if isinstance(value, int) else None
