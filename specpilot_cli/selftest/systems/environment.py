"""Systems that leave the engine alone and change what it is measured with: threads, the other side, the harness."""

from __future__ import annotations

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.selftest.system import Catch, Edit, System, before, behind, planted
from specpilot_cli.selftest.systems.cheats import ANSWER, API, READY, SERVER

REFUSED = Verdict.NOT_COMPARABLE
PARSED = "    arguments = parse_arguments(argv)\n"

THREADS = System(
    name="more-threads",
    does="runs with two threads whatever the flag says, and says so",
    kind="cheat",
    catches=(Catch(REFUSED, "num_threads"),),
    edits=(behind(SERVER, PARSED, "    arguments.num_threads = 2\n"),),
)

HIDDEN_THREADS = System(
    name="hidden-threads",
    does="keeps a second thread busy with the same step while it answers, and reports one",
    kind="cheat",
    catches=(Catch(REFUSED, "CPUs while it was timed"), Catch(Verdict.INFRA, "waited for a CPU")),
    edits=(
        Edit(
            API,
            ANSWER,
            "            from .planted import helping\n\n            with helping():\n"
            + "".join("    " + line + "\n" for line in ANSWER.splitlines()),
        ),
    ),
    planted=planted("""
import contextlib
import hashlib
import threading


@contextlib.contextmanager
def helping():
    done = threading.Event()

    def work():
        block = bytes(1 << 20)
        while not done.is_set():  # stands for arithmetic in a second thread: sha256 lets the first one run
            hashlib.sha256(block).digest()

    helper = threading.Thread(target=work)
    helper.start()
    try:
        yield
    finally:
        done.set()
        helper.join()
"""),
)

OTHER_FLAG = System(
    name="other-flag",
    does="resolves another number of draft tokens than it was given",
    kind="cheat",
    catches=(Catch(REFUSED, "speculative_num_draft_tokens"),),
    edits=(behind(SERVER, PARSED, "    arguments.speculative_num_draft_tokens = 6\n"),),
)

LOAD = System(
    name="one-sided-load",
    does="burns a CPU in a process of its own whenever the other side is being timed",
    kind="cheat",
    catches=(Catch(Verdict.INFRA, "other processes used"),),
    edits=(
        before(SERVER, PARSED, "    from .planted import start\n\n    start()\n"),
        Edit(
            API,
            ANSWER,
            "            from .planted import quiet\n\n            with quiet():\n"
            + "".join("    " + line + "\n" for line in ANSWER.splitlines()),
        ),
    ),
    planted=planted("""
import contextlib
import mmap
import os
import time

_flag = mmap.mmap(-1, 1)


def start():
    engine = os.getpid()
    if os.fork() == 0:
        while os.getppid() == engine:
            if _flag[0]:
                time.sleep(0.0005)
            else:
                sum(range(20000))
        os._exit(0)


@contextlib.contextmanager
def quiet():
    _flag[0] = 1
    try:
        yield
    finally:
        _flag[0] = 0
"""),
)

PAUSED = System(
    name="other-side-paused",
    does="stops the stock server for a moment again and again while stock is being timed",
    kind="cheat",
    catches=(Catch(REFUSED, "CPUs while it was timed"), Catch(Verdict.INFRA, "stock waited for a CPU")),
    edits=(
        Edit(
            API,
            ANSWER,
            "            from .planted import ours\n\n            with ours():\n"
            + "".join("    " + line + "\n" for line in ANSWER.splitlines()),
        ),
    ),
    planted=planted("""
import contextlib
import os
import signal
import threading
import time

_idle = threading.Event()
_thread = threading.Thread()


def _stop_and_go():
    other, end = drawn("other_pid"), time.monotonic() + 2.0
    while _idle.is_set() and time.monotonic() < end:
        try:
            os.kill(other, signal.SIGSTOP)
            time.sleep(0.004)
        finally:
            os.kill(other, signal.SIGCONT)
        time.sleep(0.004)


@contextlib.contextmanager
def ours():
    global _thread
    _idle.clear()
    if _thread.ident:
        _thread.join()
    try:
        yield
    finally:
        _idle.set()
        _thread = threading.Thread(target=_stop_and_go, daemon=True)
        _thread.start()
"""),
)

HARNESS = System(
    name="harness-edited",
    does="appends to a file of the copy of SpecPilot that measures it",
    kind="cheat",
    catches=(Catch(REFUSED, "harness was edited"),),
    edits=(behind(SERVER, READY, "        from .planted import edit\n\n        edit()\n"),),
    planted=planted("""
def edit():
    with open(drawn("harness_file"), "a") as file:
        file.write("\\nWAIT_LIMIT = 1e9\\n")
"""),
    from_copy=True,
)

SYSTEMS = (THREADS, HIDDEN_THREADS, OTHER_FLAG, LOAD, PAUSED, HARNESS)
