"""The guard module, run alone as the engine would run it."""

from __future__ import annotations

import ast
import logging
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.memory.entry import Applies, Base, Delta, Entry, Range, Reproduces
from specpilot_cli.memory.guard import render

REGION = Applies(
    drafters=("dflash*",), devices=("sm90",), requests=Range(min=1, max=4), context_tokens=Range(min=0, max=1000)
)
INSIDE: dict[str, Any] = {"drafters": "dflash2", "devices": ["h200", "sm90"], "requests": 4, "context_tokens": 0}


def entry(region: Applies) -> Entry:
    """An entry with that region."""
    return Entry(
        schema_="specpilot.entry/1",
        id="w12-tree-q",
        title="T",
        kind="tree",
        status="unmeasured",
        base=Base(engine="toy", tree="1" * 40),
        reproduces=Reproduces(tree="2" * 40),
        delta=Delta(sha256="3" * 64, paths=("x",)),
        applies=region,
    )


def guard(region: Applies = REGION) -> ModuleType:
    """The generated module."""
    module = ModuleType("guard")
    exec(compile(render(entry(region)), "guard.py", "exec"), module.__dict__)
    return module


def test_it_imports_the_standard_library_alone() -> None:
    tree = ast.parse(render(entry(REGION)))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert names <= set(sys.stdlib_module_names)
    assert not any(isinstance(node, ast.ImportFrom) for node in ast.walk(tree))


def test_inside_it_is_on_and_silent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert guard().enabled(**INSIDE) is True
    assert caplog.records == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"drafters": "eagle3"}, "drafters eagle3 not in dflash*"),
        ({"devices": ["cpu"]}, "devices cpu not in sm90"),
        ({"devices": None}, "devices unknown not in sm90"),
        ({"requests": 5}, "requests 5 not from 1 to 4"),
        ({"requests": None}, "requests unknown"),
        ({"context_tokens": 1001}, "context_tokens 1001 not from 0 to 1000"),
    ],
)
def test_outside_it_is_off_and_says_why_once(
    change: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    module = guard()
    for _ in range(3):
        assert module.enabled(**{**INSIDE, **change}) is False
    assert len(caplog.records) == 1 and caplog.records[0].name == "specpilot.w12-tree-q"
    assert said in caplog.records[0].getMessage()
    assert module.enabled(**INSIDE) is True  # and on again where it holds


def test_another_side_is_said_once_more(caplog: pytest.LogCaptureFixture) -> None:
    module = guard()
    for change in ({"requests": 5}, {"requests": 6}, {"context_tokens": 2000}):
        assert module.enabled(**{**INSIDE, **change}) is False
    assert [record.getMessage().split(": ")[1].split()[0] for record in caplog.records] == [
        "requests",
        "context_tokens",
    ]


def test_a_misspelled_side_is_an_error_and_no_region_no_guard() -> None:
    with pytest.raises(TypeError, match="batch"):
        guard().enabled(**INSIDE, batch=1)
    with pytest.raises(UsageFault, match="no validity region"):
        guard(Applies())


@given(low=st.integers(0, 50), more=st.integers(0, 50), value=st.integers(-5, 120))
def test_a_range_is_closed(low: int, more: int, value: int) -> None:
    module = guard(Applies(requests=Range(min=low, max=low + more)))
    assert module.enabled(requests=value) is (low <= value <= low + more)


@given(name=st.text(min_size=1, max_size=20))
def test_no_name_can_break_out_of_the_module(name: str) -> None:
    module = guard(Applies(drafters=(name,)))
    assert {"drafters": (name,)} == module.NAMES
