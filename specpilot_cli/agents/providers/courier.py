"""The process that asks the API. It is in a session of its own: where the round is killed, an answer that is on its way
still arrives and is kept, so that the resumed round finds it instead of paying for it again.

One JSON object a line on stdin: first the settings (the key among them: it is in no argument and no environment), then
calls. One line a reply on stdout. At the end of stdin, which is also how the death of the round looks, it finishes what
it has begun and ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from specpilot_cli.agents.provider import Call, Provider
from specpilot_cli.agents.providers.anthropic import Anthropic
from specpilot_cli.agents.providers.secret import Secret
from specpilot_cli.core.errors import SpecPilotError

Say = Callable[[dict[str, Any]], None]


def lock_of(sink: Path) -> Path:
    """Held while a courier works on a sink: the courier of a resumed round waits there for an older one."""
    return sink.with_name(f"{sink.name}.lock")


def _said(error: Exception, key: Secret) -> dict[str, str]:
    if isinstance(error, SpecPilotError):
        return {"error": type(error).__name__, "fact": error.fact, "reason": error.reason, "remedy": error.remedy}
    fact = key.scrub(f"{type(error).__name__}: {error}")
    return {"error": "ExternalFailed", "fact": "The process that asks the API failed.", "reason": fact, "remedy": ""}


def _carry(provider: Provider, key: Secret, order: dict[str, Any], say: Say) -> None:
    """Answer one call. Under the lock, `answer` finds what another courier has received in the meantime."""
    from filelock import FileLock

    sink = Path(order["sink"])
    try:
        sink.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock_of(sink)):
            answer = provider.answer(Call.model_validate(order["call"]), sink, None)
        reply: dict[str, Any] = {"answer": answer.model_dump(mode="json")}
    except Exception as error:  # the other process shows it
        reply = _said(error, key)
    say({"id": order["id"], **reply})


def serve(orders: IO[str], say: Say) -> None:
    """Work until `orders` ends, each call in a thread of its own."""
    settings = json.loads(orders.readline())
    key = Secret(settings.pop("key"), settings.pop("kind"))
    try:
        provider = Anthropic(key, **settings)
    except SpecPilotError as error:
        say(_said(error, key))
        return
    say({"ready": os.getpid()})
    with closing(provider):
        threads = []
        for line in orders:
            if not line.endswith("\n"):
                break  # the round died while it wrote this
            threads.append(threading.Thread(target=_carry, args=(provider, key, json.loads(line), say)))
            threads[-1].start()
        for thread in threads:
            thread.join()


def main() -> None:
    """Serve on stdin and stdout. Nobody reads what is said after the round died."""
    guard = threading.Lock()

    def say(reply: dict[str, Any]) -> None:
        with guard, suppress(OSError, ValueError):
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()

    serve(sys.stdin, say)
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(0)  # a broken stdout would be complained about at exit


if __name__ == "__main__":
    main()
