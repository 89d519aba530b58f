"""`python -m miniengine.server`: the engine behind HTTP, by the standard library."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from .api import Api, BadRequest
from .arguments import parse_arguments
from .config import ConfigError

MAX_BODY_BYTES = 64 << 20
POSTS = ("generate", "flush_cache", "start_profile", "stop_profile", "measure_rows")


class Server(ThreadingHTTPServer):
    """Connections have their own threads; the engine has exactly one, where the profiler records too."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], api: Api, engine: ThreadPoolExecutor) -> None:
        self.api, self.engine = api, engine
        super().__init__(address, Handler)


class Handler(BaseHTTPRequestHandler):
    """JSON in, JSON out; every failure is {"error": {"message": ...}} and the server goes on."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body, sent apart, would wait 40 ms for a delayed acknowledgement
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged: the caller has them."""

    def reply(self, code: int, body: Any) -> None:
        """Send one JSON body."""
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def fail(self, code: int, message: str) -> None:
        """Send an error; the connection closes, since an unread body may be left on it."""
        self.close_connection = True
        self.reply(code, {"error": {"message": message}})

    def do_GET(self) -> None:
        """/health and /server_info."""
        if self.path == "/health":
            self.reply(200, {"status": "ready"})
        elif self.path == "/server_info":
            self.reply(200, self.server.engine.submit(self.server.api.server_info).result())
        else:
            self.fail(404, f"no such path: GET {self.path}")

    def do_POST(self) -> None:
        """The calls in POSTS, and /shutdown."""
        name = self.path.removeprefix("/")
        if name == "shutdown":
            self.reply(200, {"success": True})
            threading.Thread(target=self.server.shutdown).start()
        elif name not in POSTS:
            self.fail(404, f"no such path: POST {self.path}")
        else:
            self.call(getattr(self.server.api, name))

    def call(self, action: Callable[[dict[str, Any]], Any]) -> None:
        """Run `action` on the engine's thread with the request's body."""
        try:
            result = self.server.engine.submit(action, self.body()).result()
        except BadRequest as error:
            return self.fail(400, str(error))
        except Exception as error:  # the boundary: report it and keep serving
            return self.fail(500, f"{type(error).__name__}: {error}")
        self.reply(200, result)

    def body(self) -> dict[str, Any]:
        """The request's JSON object; an absent body is an empty object."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or int(length) > MAX_BODY_BYTES:
            raise BadRequest(f"Content-Length must be a number of at most {MAX_BODY_BYTES} bytes")
        data = self.rfile.read(int(length))
        try:
            body = json.loads(data) if data else {}
        except (ValueError, RecursionError) as error:
            raise BadRequest("the body is not JSON") from error
        if not isinstance(body, dict):
            raise BadRequest("the body must be a JSON object")
        return body


def main(argv: list[str] | None = None) -> int:
    """Load, listen, serve until /shutdown or a signal; 2 when the arguments or the checkpoint are unusable."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(arguments.num_threads)
    engine = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(arguments.num_threads,))
    try:
        api = engine.submit(Api, arguments).result()
        server = Server((arguments.host, arguments.port), api, engine)
    except (ConfigError, OSError) as error:
        print(f"miniengine: {error}", file=sys.stderr)
        return 2
    arguments.port = server.server_port
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"miniengine ready on http://{arguments.host}:{arguments.port}", file=sys.stderr, flush=True)
    server.serve_forever(poll_interval=0.05)
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
