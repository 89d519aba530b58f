"""The round's end of the controller: a queue that survives the process behind it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.controller_lab import Lab, alive, wait_for

from specpilot_cli.agents.controller.client import RESTARTS, Controller
from specpilot_cli.agents.controller.environment import SECRET
from specpilot_cli.agents.controller.gate import Gate
from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.controller.settings import NAME
from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.core.errors import ExternalFailed, InputUnusable

PARENT = """
import sys
from pathlib import Path
from specpilot_cli.agents.controller.client import Controller
from specpilot_cli.agents.controller.protocol import Question
from specpilot_cli.agents.controller.settings import Settings
controller = Controller.start(Path(sys.argv[1]), Settings.model_validate_json(sys.argv[2]))
controller.ask(Question(kind="screen", tree=sys.argv[3]), lambda line: print(controller.pid, flush=True))
"""


def _screen(tree: str) -> Question:
    return Question(kind="screen", tree=tree)


def test_it_is_a_gate_and_answers(lab: Lab) -> None:
    said: list[str] = []
    with Controller.start(lab.folder, lab.settings()) as controller:
        gate: Gate = controller
        reply = gate.ask(_screen(lab.tree()), said.append)
        assert gate.ask(_screen(lab.tree())) == reply.model_copy(update={"seconds": 0.0})
        pid = controller.pid
        assert controller.gpu_seconds == pytest.approx(reply.seconds) and reply.seconds > 0
    assert reply.verdict is Verdict.PROMOTED and any("pair-run" in line for line in said)
    assert pid is not None and not alive(pid)


def test_a_killed_controller_is_started_again(lab: Lab) -> None:
    lab.plan(forced=["hang", "LOSSLESS"])
    with Controller.start(lab.folder, lab.settings()) as controller, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(controller.ask, Question(kind="promote", tree=lab.tree()))
        wait_for(lambda: lab.starts("forced"))
        assert controller.pid is not None
        os.kill(controller.pid, signal.SIGKILL)
        assert answer.result(60).verdict is Verdict.PROMOTED
    assert len(lab.starts("promote")) == 1 and len(lab.starts("forced")) == 2


def test_a_controller_that_was_killed_while_nothing_was_asked_is_started_again(lab: Lab) -> None:
    with Controller.start(lab.folder, lab.settings()) as controller:
        first = controller.ask(Question(kind="noise"))
        assert controller.pid is not None
        os.kill(controller.pid, signal.SIGKILL)
        assert controller.ask(Question(kind="noise")) == first.model_copy(update={"seconds": 0.0})
    assert len(lab.starts()) == 1


def test_a_controller_that_dies_over_and_over_is_infra(lab: Lab) -> None:
    lab.plan(screen=["hang"])
    killed: list[int] = []

    def kill(line: str) -> None:
        if "screen" in line and controller.pid is not None:
            killed.append(controller.pid)
            os.kill(controller.pid, signal.SIGKILL)

    with Controller.start(lab.folder, lab.settings()) as controller:
        with pytest.raises(ExternalFailed, match="INFRA"):
            controller.ask(_screen(lab.tree()), kill)
        assert len(set(killed)) == 1 + RESTARTS
        assert controller.ask(Question(kind="noise")).verdict is None, "the next question has its own restarts"


def test_threads_wait_for_each_other(lab: Lab) -> None:
    trees = [lab.tree({"engine/fast.py": b"fast = %d\n" % number}) for number in range(4)]
    with Controller.start(lab.folder, lab.settings()) as controller, ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(lambda tree: controller.ask(_screen(tree)), trees))
        pids = {controller.pid}
        replies += list(pool.map(lambda tree: controller.ask(_screen(tree)), trees))
        pids.add(controller.pid)
    assert len(pids) == 1, "threads that asked came and went"
    for tree, reply in zip(trees, replies[:4], strict=True):
        measured = json.loads((lab.folder / reply.artifacts[0][0]).read_bytes())
        assert measured["body"]["candidate"]["tree"] == tree
    assert len(lab.starts("noise")) == 1 and len(lab.starts("screen")) == 4


def test_the_thread_that_asked_first_may_end(lab: Lab) -> None:
    with Controller.start(lab.folder, lab.settings()) as controller:
        first = threading.Thread(target=controller.ask, args=(Question(kind="noise"),))
        first.start()
        first.join()
        pid = controller.pid
        assert pid is not None and alive(pid)
        controller.ask(_screen(lab.tree()))
        assert controller.pid == pid


def test_close_ends_a_measurement_which_goes_on_later(lab: Lab) -> None:
    lab.plan(screen=["hang", "PROMOTED"])
    tree = lab.tree()
    with ThreadPoolExecutor(2) as pool:
        controller = Controller.start(lab.folder, lab.settings())
        answers = [pool.submit(controller.ask, _screen(tree)) for _ in range(2)]
        (hung,) = wait_for(lambda: lab.starts("screen"))
        wait_for(lambda: (lab.folder / hung["name"]).exists())
        controller.close()
        for answer in answers:
            with pytest.raises(ExternalFailed, match="closed"):
                answer.result(10)
        assert not alive(hung["pid"])
    with pytest.raises(ExternalFailed, match="closed"):
        controller.ask(_screen(tree))
    controller.close()
    with Controller.start(lab.folder, lab.settings()) as again:
        assert again.ask(_screen(tree)).verdict is Verdict.PROMOTED
    assert [start["resumed"] for start in lab.starts("screen")] == [False, True]


def test_progress_that_fails_is_the_askers_failure_alone(lab: Lab) -> None:
    def fail(line: str) -> None:
        raise ValueError(line)

    with Controller.start(lab.folder, lab.settings()) as controller:
        with pytest.raises(ValueError, match="pair-run"):
            controller.ask(_screen(lab.tree()), fail)
        assert controller.ask(_screen(lab.tree())).verdict is Verdict.PROMOTED
    assert len(lab.starts("screen")) == 1


def test_it_dies_with_its_parent(lab: Lab) -> None:
    lab.plan(screen=["hang"])
    argv = [sys.executable, "-c", PARENT, str(lab.folder), lab.settings().model_dump_json(), lab.tree()]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        (hung,) = wait_for(lambda: lab.starts("screen"))
        assert alive(pid) and alive(hung["pid"])
        parent.kill()
        wait_for(lambda: not alive(pid) and not alive(hung["pid"]))


def test_other_settings_need_another_folder(lab: Lab) -> None:
    Controller.start(lab.folder, lab.settings()).close()
    with pytest.raises(InputUnusable, match="server_args"):
        Controller.start(lab.folder, lab.settings(server_args=("--other",)))
    (lab.folder / NAME).write_text("{")
    with pytest.raises(InputUnusable, match="not the settings of a controller"):
        Controller.start(lab.folder, lab.settings())


def test_settings_that_are_damaged_later_are_no_endless_loop(lab: Lab) -> None:
    with Controller.start(lab.folder, lab.settings()) as controller:
        (lab.folder / NAME).write_text("{")
        with pytest.raises(ExternalFailed, match="ended without an answer"):
            controller.ask(Question(kind="noise"))
    assert (lab.folder / "controller.log").read_text().count("not the settings") == 1


def test_the_process_knows_no_secret(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-not-a-real-one")
    replies: list[Reply] = []
    with Controller.start(lab.folder, lab.settings()) as controller:
        replies.append(controller.ask(Question(kind="noise")))
        environment = Path(f"/proc/{controller.pid}/environ").read_bytes()
    names = [part.split(b"=", 1)[0].decode() for part in environment.split(b"\0") if part]
    assert "PATH" in names and [name for name in names if SECRET.search(name)] == []
    for path in lab.folder.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            assert b"sk-ant-not-a-real-one" not in path.read_bytes()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="PYTHONSAFEPATH is of Python 3.11")
def test_a_package_that_an_engine_left_in_the_folder_is_not_imported(lab: Lab) -> None:
    planted = lab.folder / "specpilot_cli"
    planted.mkdir(parents=True)
    (planted / "__init__.py").write_text("open('canary', 'w')\n")
    with Controller.start(lab.folder, lab.settings()) as controller:
        assert controller.ask(Question(kind="noise")).verdict is None
    assert not (lab.folder / "canary").exists()
