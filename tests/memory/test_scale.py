"""A hundred entries cost a hundred times one: every order of names, the expected trees, and the number of git's starts.

The full size (140 entries of up to 12 requirements on 4,000 files) with its times:
`pytest -m slow -s tests/memory/test_scale.py`.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.cli import Cli
from support.memory_scale import Big, big

from specpilot_cli.memory.apply import plan
from specpilot_cli.memory.check import Checker
from specpilot_cli.memory.compose import Composer
from specpilot_cli.memory.resolve import resolve
from specpilot_cli.worktrees.git import tree_id


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Big:
    """24 entries on 60 files."""
    return big(tmp_path_factory.mktemp("small"), files=60, entries=24)


@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_any_permutation_of_any_names_gives_the_tree_that_git_gives(small: Big, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(small.plan.requires)), min_size=1, max_size=6, unique=True))
    other = data.draw(st.permutations(names))
    below = set(names).union(*(small.plan.closures[name] for name in names))
    load = small.room.loader("toy")
    with Composer(small.stock) as composer:
        made = [composer.compose(small.trees.base, resolve(order, load)).tree for order in (names, other)]
    assert made == [small.trees.tree(below)] * 2
    assert Composer(small.stock).compose(small.trees.base, resolve(names, load)).tree == made[0]  # without the index


def git_starts(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> int:
    """How often `work` starts git."""
    starts = 0
    real = subprocess.run

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal starts
        starts += 1
        return real(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", counted)
        work()
    return starts


def check_all(made: Big, count: int) -> None:
    """Check the first `count` entries; all are in order."""
    with Checker(made.room, made.stock) as checker:
        assert checker.room_faults() == ()
        for folder in made.room.folders()[:count]:
            assert checker.check(folder).faults == ()


def test_the_starts_of_git_are_linear_in_the_entries(small: Big, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry costs its own delta and those of its requirements at most, whatever the room holds beside it."""
    none = git_starts(monkeypatch, lambda: check_all(small, 0))
    half = git_starts(monkeypatch, lambda: check_all(small, 12))
    whole = git_starts(monkeypatch, lambda: check_all(small, 24))
    fixed = 40  # lease and first checkout of the worktree
    steps = sum(len(below) + 1 for below in small.plan.closures.values())
    assert none == 0
    assert (
        half < whole <= fixed + 3 * steps + 3 * 24
    )  # apply, write-tree, diff a step; read, commit, check out an entry
    one = git_starts(monkeypatch, lambda: plan(small.room, (small.largest,), small.stock))
    assert one <= fixed + 3 * (len(small.plan.closures[small.largest]) + 1)


@pytest.mark.slow
def test_the_full_size(tmp_path: Path) -> None:
    """The largest closure in 10 s, all entries in 2 minutes: of CPU, which a busy machine does not change; the time on
    the clock is printed beside it."""
    made = big(tmp_path, files=4000, entries=140)
    name = made.largest
    assert len(made.plan.closures[name]) == 12
    argv = ("--stock", "stock", "--memory-dir", "room")
    cpu_s = {}
    for words in (("apply", name, *argv, "--worktree", "out", "-o", "a.json"), ("check", *argv)):
        used, start = _children_s(), time.monotonic()
        Cli(tmp_path)("memory", *words).expect(0)
        cpu_s[words[0]] = _children_s() - used
        print(f"\nmemory {words[0]}: {cpu_s[words[0]]:.1f} s of CPU, {time.monotonic() - start:.1f} s on the clock")
    assert tree_id(tmp_path / "out") == made.trees.tree(made.plan.closures[name] | {name})
    assert cpu_s["apply"] < 10 and cpu_s["check"] < 120


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
