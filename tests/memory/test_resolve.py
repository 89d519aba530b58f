"""Requirements first, ties by id; conflicts and circles are explained."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.memory.entry import Base, Delta, Entry, EntryFolder, Reproduces
from specpilot_cli.memory.resolve import closure, resolve

Graph = dict[str, list[str]]


def loader(requires: Graph, conflicts: Graph | None = None) -> Callable[[str], EntryFolder]:
    """Entries with those requirements."""

    def load(name: str) -> EntryFolder:
        if name not in requires:
            raise UsageFault(f"There is no entry '{name}'.")
        entry = Entry(
            schema_="specpilot.entry/1",
            id=name,
            title=name,
            kind="engine",
            status="unmeasured",
            requires=tuple(requires[name]),
            conflicts=tuple((conflicts or {}).get(name, ())),
            base=Base(engine="toy", tree="1" * 40),
            reproduces=Reproduces(tree="2" * 40),
            delta=Delta(sha256="3" * 64, paths=("x",)),
        )
        return EntryFolder(entry, Path(name), b"")

    return load


def order(names: list[str], requires: Graph, conflicts: Graph | None = None) -> list[str]:
    """Ids in the order of application."""
    return [item.entry.id for item in resolve(names, loader(requires, conflicts))]


def test_requirements_come_first_and_ties_go_by_id() -> None:
    graph: Graph = {"z": [], "a": ["z"], "b": [], "m": ["a", "b"]}
    assert order(["m"], graph) == ["b", "z", "a", "m"]
    assert order(["b", "z"], graph) == ["b", "z"]


DAGS = st.integers(1, 7).flatmap(
    lambda size: st.tuples(
        st.permutations([chr(97 + i) for i in range(size)]),
        st.lists(st.lists(st.integers(0, 6), max_size=3), min_size=size, max_size=size),
    )
)


@given(dag=DAGS, data=st.data())
def test_every_order_of_names_gives_the_smallest_valid_order(
    dag: tuple[list[str], list[list[int]]], data: st.DataObject
) -> None:
    names, edges = dag
    graph: Graph = {n: sorted({names[j] for j in edges[i] if j < i}) for i, n in enumerate(names)}
    asked = data.draw(st.permutations(names)) if len(names) < 6 else list(reversed(names))
    found = order(asked, graph)
    assert found == order(names, graph)
    if len(names) <= 5:  # by definition: the lexicographically smallest permutation that puts requirements first
        valid = (
            p
            for p in itertools.permutations(sorted(names))
            if all(p.index(r) < p.index(n) for n in names for r in graph[n])
        )
        assert tuple(found) == min(valid)


def test_a_circle_is_spelled_out() -> None:
    with pytest.raises(InputUnusable, match="circle") as caught:
        order(["top"], {"top": ["a"], "a": ["b"], "b": ["c"], "c": ["a"]})
    assert "a needs b needs c needs a" in str(caught.value)
    with pytest.raises(InputUnusable, match="circle"):
        order(["self"], {"self": ["self"]})


def test_a_conflict_is_explained_as_a_chain() -> None:
    graph: Graph = {"w12-tree-q": ["w12-linear"], "w12-linear": ["ground"], "ground": [], "other": []}
    for conflicts in ({"other": ["ground"]}, {"ground": ["other"]}):
        with pytest.raises(UsageFault) as caught:
            order(["w12-tree-q", "other"], graph, conflicts)
        assert "conflicts with" in str(caught.value)
        assert "w12-tree-q needs w12-linear, w12-linear needs ground" in str(caught.value)
    assert order(["w12-tree-q"], graph, {"ground": ["other"]}) == ["ground", "w12-linear", "w12-tree-q"]


def test_unknown_names() -> None:
    with pytest.raises(UsageFault, match="no entry 'x'"):
        order(["x"], {})
    with pytest.raises(InputUnusable, match="a requires x"):
        order(["a"], {"a": ["x"]})


def test_at_most_twelve_requirements_all_in_all() -> None:
    chain: Graph = {f"e{n:02}": ([f"e{n - 1:02}"] if n else []) for n in range(14)}
    assert len(closure("e12", loader(chain))) == 13
    with pytest.raises(InputUnusable, match="limit is 12"):
        closure("e13", loader(chain))
