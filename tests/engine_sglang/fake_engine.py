"""A made-up `sglang` package with an offline Engine, as far as `engine/sglang/offline.py` uses it.

Its answers are those of `fake_sglang.py`, which lies beside it as `sglang/launch_server.py`. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
import time
import types
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

DIES, REFUSED, BROKEN_OFF = 61, 62, 63
"""First tokens of prompts that go wrong."""


class Flags(SimpleNamespace):
    """`ServerArgs`."""

    launch_command = "offline"

    def resolved_dict(self) -> dict[str, Any]:
        """What was resolved, and what the plan says beside."""
        from sglang import launch_server

        return {**vars(self), **launch_server.PLAN.get("info", {})}


class Manager:
    """`TokenizerManager`."""

    profile: Any = None

    def __init__(self, flags: Flags) -> None:
        self.server_args, self.startup_time, self.flushed = flags, {"scheduler_e2e": time.time()}, 0

    async def get_internal_state(self) -> list[dict[str, Any]]:
        """Of each scheduler."""
        memory = {"weight": 1.0, "token_capacity": 4096}
        return [{"last_gen_throughput": 1.0, "memory_usage": memory, "flushed": self.flushed}]

    async def flush_cache(self, timeout_s: float) -> Any:
        """Not where the plan keeps it busy."""
        from sglang import launch_server

        assert timeout_s > 0, "the engine may still be busy with what it has answered"
        self.flushed += 1
        return SimpleNamespace(success=not launch_server.PLAN.get("busy"))

    async def start_profile(self, request: Any) -> None:
        """Remember where the trace goes."""
        self.profile = request

    async def stop_profile(self) -> None:
        """The trace."""
        from sglang import launch_server

        (Path(self.profile.output_dir) / "1-TP-0.trace.json.gz").write_bytes(launch_server.TRACE)


class Engine:
    """`sglang.Engine`, with a child for a scheduler."""

    def __init__(self, server_args: Flags) -> None:
        from sglang import launch_server as fake

        if fake.PLAN.get("refuse"):
            raise ValueError(fake.PLAN["refuse"])
        self.fake, self.tokenizer_manager = fake, Manager(server_args)
        self._scheduler_init_result = SimpleNamespace(scheduler_infos=[{"max_total_num_tokens": 4096}])
        child = multiprocessing.get_context("spawn").Process(target=scheduler, name="scheduler")
        child.start()
        self.loop = asyncio.new_event_loop()

    async def async_generate(
        self, input_ids: Any, sampling_params: dict[str, Any], *, stream: bool = False, rid: Any = None, **more: Any
    ) -> Any:
        """Answers as the server's `/generate`."""
        fake = self.fake
        first = input_ids[0][0] if isinstance(input_ids[0], list) else input_ids[0]
        if first == DIES:
            print("RuntimeError: planned failure", flush=True)
            os._exit(9)
        if first == REFUSED:
            raise ValueError("planned failure")
        if stream:
            return self._chunks(input_ids, sampling_params)
        many = input_ids if isinstance(input_ids[0], list) else [input_ids]
        await asyncio.sleep(fake.STEP_S * len(fake.steps(int(sampling_params["max_new_tokens"]))))
        found = [self._one(ids, sampling_params, more) for ids in many]
        return found if isinstance(input_ids[0], list) else found[0]

    def _one(self, ids: list[int], sampling: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
        output, lengths, finish = self.fake.generate(ids, sampling)
        found = self.fake.meta(ids, output, finish, lengths)
        if more.get("return_logprob"):
            found |= self.fake.score(ids, more["logprob_start_len"], more["top_logprobs_num"])
        return {"output_ids": output, "meta_info": found}

    async def _chunks(self, ids: list[int], sampling: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        output, lengths, finish = self.fake.generate(ids, sampling)
        done = 0
        for length in lengths:
            done += length
            last = done == len(output)
            if last and ids[0] == BROKEN_OFF:
                return
            yield {
                "output_ids": output[:done],
                "meta_info": self.fake.meta(ids, output[:done], finish if last else None, lengths),
            }
            await asyncio.sleep(self.fake.STEP_S)


def scheduler() -> None:
    """The child: does nothing, for ever."""
    threading.Event().wait()


def kill_process_tree(pid: int, include_parent: bool = True) -> None:
    """As `sglang.srt.utils.kill_process_tree`, of this process's children."""
    for child in multiprocessing.active_children():
        child.kill()


def prepare_server_args(argv: list[str]) -> Flags:
    """Flags of the command line."""
    from sglang import launch_server

    return Flags(**launch_server.flags(argv))


def _modules() -> None:
    """The parts of the package that `offline.py` names."""
    parts: dict[str, dict[str, Any]] = {
        "srt": {},
        "srt.plugins": {"load_plugins": lambda: None},
        "srt.server_args": {"prepare_server_args": prepare_server_args},
        "srt.utils": {"kill_process_tree": kill_process_tree},
        "srt.utils.msgspec_utils": {"msgspec_to_builtins": lambda found: found},
        "srt.utils.json_response": {"dumps_json": lambda found: json.dumps(found).encode()},
        "srt.managers": {},
        "srt.managers.io_struct": {"ProfileReq": SimpleNamespace},
        "version": {"__version__": "0.5.20"},
    }
    for name, members in parts.items():
        module = types.ModuleType(f"sglang.{name}")
        module.__path__ = []  # type: ignore[attr-defined]
        vars(module).update(members)
        sys.modules[module.__name__] = module


if __name__ == "sglang":
    _modules()
