"""The journal and the store: what is on the disk after a kill, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specpilot_cli.agents.durable import Durable
from specpilot_cli.agents.journal import Journal, read
from specpilot_cli.agents.store import Store
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable


def test_events_are_numbered_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append("one", "a/b", value=1)
        journal.append("two", text="Grüße\n\x1b[0m")
        assert [event.seq for event in read(path)] == [0, 1]  # also while it is open
    with Journal(path) as journal:
        assert journal.append("three").seq == 2
        assert [event.kind for event in journal.events] == ["one", "two", "three"]
    assert json.loads(path.read_bytes().splitlines()[1])["data"] == {"text": "Grüße\n\x1b[0m"}


def test_a_torn_last_line_never_happened(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append("whole")
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole + whole[:cut])
        assert [event.kind for event in read(path)] == ["whole"]
    with Journal(path) as journal:
        journal.append("next")
    assert [event.kind for event in read(path)] == ["whole", "next"]


@pytest.mark.parametrize("damage", [b"{}\n", b"nonsense\n", b'{"seq":5,"at":"","kind":"","key":"","data":{}}\n'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append("whole")
    path.write_bytes(path.read_bytes() + damage)
    with pytest.raises(InputUnusable, match="line 2"):
        list(read(path))


def test_one_process_writes(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl"), pytest.raises(EnvironmentUnusable), Journal(tmp_path / "journal.jsonl"):
        pass


def test_the_store_notices_changed_bytes(tmp_path: Path) -> None:
    store = Store(tmp_path)
    digest = store.put_json({"a": [1, "ß"]})
    assert store.put_json({"a": [1, "ß"]}) == digest
    assert store.get_json(digest) == {"a": [1, "ß"]}
    store.path(digest).write_bytes(b"{}")
    with pytest.raises(InputUnusable, match="was changed"):
        store.get(digest)
    with pytest.raises(InputUnusable, match="cannot be read"):
        store.get("0" * 64)


def test_an_effect_happens_once_also_in_the_next_process(tmp_path: Path) -> None:
    ran: list[str] = []

    def effect() -> dict[str, int]:
        ran.append("ran")
        return {"answer": 42}

    for _ in range(3):
        with Journal(tmp_path / "journal.jsonl") as journal:
            durable = Durable(journal, Store(tmp_path / "objects"))
            assert [durable.once("a/turn/0", "what?", effect) for _ in range(2)] == [{"answer": 42}] * 2
    assert ran == ["ran"]


def test_an_effect_that_was_cut_off_runs_again_and_is_counted(tmp_path: Path) -> None:
    def cut_off() -> None:
        raise KeyboardInterrupt

    for attempt in (1, 2):
        with Journal(tmp_path / "journal.jsonl") as journal:
            durable = Durable(journal, Store(tmp_path / "objects"))
            with pytest.raises(KeyboardInterrupt):
                durable.once("a/turn/0", "what?", cut_off)
            assert not durable.known("a/turn/0") and durable.attempts("a/turn/0") == attempt


def test_another_question_under_the_same_key_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "journal.jsonl") as journal:
        durable = Durable(journal, Store(tmp_path / "objects"))
        durable.once("a/turn/0", "what?", lambda: 1)
        with pytest.raises(InputUnusable, match="something else"):
            durable.once("a/turn/0", "who?", lambda: 2)


def test_what_is_not_allowed_is_not_begun(tmp_path: Path) -> None:
    def no() -> None:
        raise RuntimeError("no")

    with Journal(tmp_path / "journal.jsonl") as journal:
        durable = Durable(journal, Store(tmp_path / "objects"))
        with pytest.raises(RuntimeError):
            durable.once("a/turn/0", "what?", lambda: 1, no)
        assert journal.events == [] and durable.attempts("a/turn/0") == 0
        durable.once("a/turn/0", "what?", lambda: 1)
        assert durable.once("a/turn/0", "what?", lambda: 2, no) == 1  # a known result needs no leave
