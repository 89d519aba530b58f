"""SGLang's offline Engine behind the routes that the adapter needs: `python offline.py FLAGS --port N`.

Runs in the engine's interpreter and imports nothing of this package. `sglang.Engine` has no HTTP server of its own: no
tokenizer routes, no FastAPI, no uvicorn between request and scheduler. Requests go to `Engine.async_generate`, on the
Engine's event loop; the answers have the shapes of SGLang's own routes, so one client speaks to both.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

MOST_BYTES = 1 << 30
"""Of a request: a batch of prompts is one body."""
WARM_UP = {"input_ids": [10, 11, 12], "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
"""What SGLang's server asks itself before it says that it is ready (`http_server._execute_server_warmup`)."""


class Routes:
    """The routes, over an Engine."""

    def __init__(self, engine: Any) -> None:
        self.web: Any = importlib.import_module("aiohttp.web")
        self.engine, self.manager = engine, engine.tokenizer_manager
        self._dump: Any = importlib.import_module("sglang.srt.utils.json_response").dumps_json

    def app(self) -> Any:
        """The application."""
        app = self.web.Application(client_max_size=MOST_BYTES)
        app.router.add_get("/health", self._answers(self.health))
        app.router.add_get("/server_info", self._answers(self.info))
        app.router.add_post("/generate", self._answers(self.generate))
        app.router.add_post("/flush_cache", self._answers(self.flush))
        app.router.add_post("/start_profile", self._answers(self.start_profile))
        app.router.add_post("/stop_profile", self._answers(self.stop_profile))
        return app

    def _answers(self, route: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """A request that the engine refuses is the caller's fault: 400, with the reason, as SGLang answers."""

        async def answer(request: Any) -> Any:
            try:
                return await route(request)
            except (ValueError, TypeError) as error:
                return self.web.json_response({"error": {"message": str(error)}}, status=400)

        return answer

    async def health(self, request: Any) -> Any:
        """The Engine is there before this listens."""
        return self.web.Response()

    async def info(self, request: Any) -> Any:
        """As `Engine.get_server_info`, which cannot be called while its loop runs."""
        utils: Any = importlib.import_module("sglang.srt.utils.msgspec_utils")
        arguments = self.manager.server_args
        found = {
            **arguments.resolved_dict(),
            "launch_command": arguments.launch_command,
            **self.engine._scheduler_init_result.scheduler_infos[0],
            "startup_time": self.manager.startup_time,
            "internal_states": await self.manager.get_internal_state(),
            "version": importlib.import_module("sglang.version").__version__,
        }
        return self._bytes(json.dumps(utils.msgspec_to_builtins(found), default=str).encode())

    async def generate(self, request: Any) -> Any:
        """One request or a batch; with `stream` one event for each chunk."""
        body = await request.json()
        if not body.get("stream"):
            return self._bytes(self._dump(await self.engine.async_generate(**body)))
        chunks = aiter(await self.engine.async_generate(**body))
        first = await anext(chunks, None)  # what the engine refuses, it refuses here: still a 400
        response = self.web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if first is not None:
            await response.write(b"data: " + self._dump(first) + b"\n\n")
        async for chunk in chunks:
            await response.write(b"data: " + self._dump(chunk) + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def flush(self, request: Any) -> Any:
        """Empty the prefix cache, once nothing runs any more."""
        done = await self.manager.flush_cache(timeout_s=float(request.query.get("timeout", 0.0)))
        return self.web.Response(text="Cache flushed.\n") if done.success else self.web.Response(status=400)

    async def start_profile(self, request: Any) -> Any:
        """Start the torch profiler in the scheduler."""
        structs: Any = importlib.import_module("sglang.srt.managers.io_struct")
        await self.manager.start_profile(structs.ProfileReq(**await request.json()))
        return self.web.Response(text="Start profiling.\n")

    async def stop_profile(self, request: Any) -> Any:
        """Stop it; the trace is written in the background."""
        await self.manager.stop_profile()
        return self.web.Response(text="Stop profiling. This will take some time.\n")

    def _bytes(self, data: bytes) -> Any:
        return self.web.Response(body=data, content_type="application/json")


async def serve(engine: Any, port: int) -> None:
    """Warm up, then listen."""
    web: Any = importlib.import_module("aiohttp.web")
    await engine.async_generate(**WARM_UP)
    runner = web.AppRunner(Routes(engine).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()


def main(argv: list[str]) -> None:
    """Start the Engine with SGLang's own flags, and serve until killed."""
    importlib.import_module("sglang.srt.plugins").load_plugins()
    arguments = importlib.import_module("sglang.srt.server_args")
    utils = importlib.import_module("sglang.srt.utils")
    try:
        flags = arguments.prepare_server_args(argv)
        engine = importlib.import_module("sglang").Engine(server_args=flags)
        engine.loop.run_until_complete(serve(engine, int(flags.port)))
        engine.loop.run_forever()
    finally:
        utils.kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
