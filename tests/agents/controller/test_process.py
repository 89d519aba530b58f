"""The controller as a process: what it says, and what is left when it, a stage or its parent is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from support.controller_lab import Lab, alive, wait_for

from specpilot_cli.agents.controller.protocol import Question, Reply
from specpilot_cli.agents.controller.settings import NAME, keep_settings
from specpilot_cli.artifacts.verdict import Verdict

ARGV = (sys.executable, "-m", "specpilot_cli.agents.controller.process", "--folder")


class Talk:
    """One controller process, line by line."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child, self.pid = child, child.pid

    def write(self, line: bytes) -> None:
        """One line on its stdin."""
        assert self.child.stdin is not None
        self.child.stdin.write(line + b"\n")
        self.child.stdin.flush()

    def ask(self, number: int, **question: Any) -> None:
        """A question, without waiting for its answer."""
        asked = Question.model_validate(question).model_dump(mode="json")
        self.write(json.dumps({"id": number, "question": asked}).encode())

    def read(self) -> list[dict[str, Any]]:
        """Messages up to the next answer or error."""
        assert self.child.stdout is not None
        found: list[dict[str, Any]] = []
        while not found or not {"reply", "error"} & set(found[-1]):
            found.append(json.loads(self.child.stdout.readline()))
        return found

    def reply(self) -> Reply:
        """The next answer."""
        return Reply.model_validate(self.read()[-1]["reply"])

    def kill(self) -> None:
        """As `kill -9`."""
        self.child.kill()
        self.child.wait()


@contextmanager
def controller(lab: Lab, **changes: Any) -> Iterator[Talk]:
    """A process over the lab's folder."""
    keep_settings(lab.folder, lab.settings(**changes))
    child = subprocess.Popen([*ARGV, str(lab.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        try:
            yield Talk(child)
        finally:
            child.kill()


def test_answers_come_in_order_and_nothing_else_is_on_stdout(lab: Lab) -> None:
    tree = lab.tree()
    with controller(lab) as talk:
        talk.ask(7, kind="screen", tree=tree)
        talk.write(b"{")
        talk.write(b'{"id": 8, "question": {"kind": "seal"}}')
        talk.ask(9, kind="screen", tree=tree)
        messages = [talk.read() for _ in range(4)]
        assert talk.child.stdin is not None and talk.child.stdout is not None
        talk.child.stdin.close()
        assert talk.child.stdout.read() == b"" and talk.child.wait(10) == 0
    assert [part[-1]["id"] for part in messages] == [7, None, 8, 9]
    assert {frozenset(message) for message in messages[0][:-1]} == {frozenset({"id", "progress"})}
    assert ["error" in part[-1] for part in messages] == [False, True, True, False]
    first, last = (Reply.model_validate(messages[at][-1]["reply"]) for at in (0, 3))
    assert first.verdict is Verdict.PROMOTED and last == first.model_copy(update={"seconds": 0.0})
    assert messages[3][-1]["gpu_seconds"] == pytest.approx(first.seconds)


def test_a_killed_controller_takes_its_stage_along_and_goes_on(lab: Lab) -> None:
    lab.plan(forced=["hang", "LOSSLESS"])
    tree = lab.tree()
    with controller(lab) as talk:
        talk.ask(0, kind="promote", tree=tree)
        (hung,) = wait_for(lambda: lab.starts("forced"))
        talk.kill()
        wait_for(lambda: not alive(hung["pid"]))
    with controller(lab) as talk:
        talk.ask(0, kind="promote", tree=tree)
        reply = talk.reply()
    assert reply.verdict is Verdict.PROMOTED and reply.mismatch_rate == 0.01
    assert len(lab.starts("noise")) == len(lab.starts("promote")) == 1
    assert [start["resumed"] for start in lab.starts("forced")] == [False, True]


def test_kills_at_every_stage_change_nothing_of_the_answer(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    """One kill shortly after each start of a stage: the answer of an undisturbed controller, nothing finished twice."""
    calm = Lab(tmp_path_factory.mktemp("calm"))
    question = {"kind": "final", "tree": lab.tree()}
    calm.tree()
    with controller(calm) as talk:
        talk.ask(0, **question)
        wanted = talk.reply()
    kills = len(calm.starts())
    assert kills == 6
    for number in range(kills):
        with controller(lab) as talk:
            talk.ask(0, **question)
            wait_for(lambda number=number: len(lab.starts()) > number)  # type: ignore[misc]
            talk.kill()
    with controller(lab) as talk:
        talk.ask(0, **question)
        reply = talk.reply()
    assert [name for name, _ in reply.artifacts] == [name for name, _ in wanted.artifacts]
    same = {"seconds": 0.0, "artifacts": ()}
    assert reply.model_copy(update=same) == wanted.model_copy(update=same)
    assert [start["name"] for start in lab.starts() if start["done"]] == []
    assert {start["name"] for start in lab.starts()} == {start["name"] for start in calm.starts()}


def test_a_killed_stage_is_resumed(lab: Lab) -> None:
    lab.plan(screen=["hang", "PROMOTED"])
    with controller(lab) as talk:
        talk.ask(0, kind="screen", tree=lab.tree())
        (hung,) = wait_for(lambda: lab.starts("screen"))
        wait_for(lambda: (lab.folder / hung["name"]).exists())
        os.kill(hung["pid"], signal.SIGKILL)
        assert talk.reply().verdict is Verdict.PROMOTED
    assert [start["resumed"] for start in lab.starts("screen")] == [False, True]


def test_the_end_of_stdin_ends_what_is_measured(lab: Lab) -> None:
    lab.plan(screen=["hang"])
    with controller(lab) as talk:
        talk.ask(0, kind="screen", tree=lab.tree())
        (hung,) = wait_for(lambda: lab.starts("screen"))
        assert talk.child.stdin is not None
        talk.child.stdin.close()
        assert talk.child.wait(20) == 0
        assert not alive(hung["pid"])


def test_what_a_stage_leaves_behind_is_killed(lab: Lab) -> None:
    lab.plan(screen=["daemon"])
    with controller(lab) as talk:
        talk.ask(0, kind="screen", tree=lab.tree())
        assert talk.reply().verdict is Verdict.PROMOTED
        assert not alive(int((lab.fake / "daemon").read_text()))


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"stock": 1}', b"\xff", None])
def test_damaged_settings_are_said_in_three_lines(lab: Lab, damage: bytes | None) -> None:
    lab.folder.mkdir()
    if damage is not None:
        (lab.folder / NAME).write_bytes(damage)
    done = subprocess.run([*ARGV, str(lab.folder)], input=b"", capture_output=True, check=False, timeout=60)
    assert done.returncode == 3 and done.stdout == b""
    said = done.stderr.decode()
    assert NAME in said and "Traceback" not in said and len(said.splitlines()) <= 3


def test_one_process_a_folder(lab: Lab) -> None:
    with controller(lab) as talk:
        talk.ask(0, kind="noise")
        talk.reply()
        done = subprocess.run([*ARGV, str(lab.folder)], input=b"", capture_output=True, check=False, timeout=60)
    assert done.returncode == 4 and b"is in use" in done.stderr


def test_the_folder_is_the_controllers_alone(lab: Lab) -> None:
    lab.folder.mkdir(mode=0o755)
    with controller(lab) as talk:
        talk.ask(0, kind="noise")
        talk.reply()
    assert lab.folder.stat().st_mode & 0o777 == 0o700
