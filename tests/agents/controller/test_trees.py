"""Which trees are measured, and from which files."""

from __future__ import annotations

import pytest
from support.controller_lab import Lab
from support.mini_repo import raw_git, snapshot

from specpilot_cli.agents.controller.protocol import Kind, Question
from specpilot_cli.artifacts.verdict import Verdict


def _screen(tree: str, **more: object) -> Question:
    return Question.model_validate({"kind": "screen", "tree": tree, **more})


def test_what_is_measured_is_the_tree_that_was_asked_about(lab: Lab) -> None:
    tree = lab.tree()
    with lab.stages() as stages:
        assert stages.answer(_screen(tree)).verdict is Verdict.PROMOTED
    (start,) = lab.starts("screen")
    assert start["trees"] == [lab.base, tree]
    assert not (lab.folder / "trees" / tree[:16]).exists()


def test_files_that_somebody_left_in_its_place_are_not_measured(lab: Lab) -> None:
    tree = lab.tree()
    place = lab.folder / "trees" / tree[:16]
    place.mkdir(parents=True)
    (place / "engine.py").write_text("planted = True\n")
    with lab.stages() as stages:
        assert stages.answer(_screen(tree)).verdict is Verdict.PROMOTED
    assert lab.starts("screen")[0]["trees"] == [lab.base, tree]


def test_an_edited_stock_is_made_anew(lab: Lab) -> None:
    with lab.stages() as stages:
        stages.answer(Question(kind="noise"))
        clean = snapshot(lab.folder / "trees" / "stock")
        (lab.folder / "trees" / "stock" / "engine" / "model.py").write_text("layer_0 = 1\n")
        stages.answer(_screen(lab.tree()))
    assert snapshot(lab.folder / "trees" / "stock") == clean


@pytest.mark.parametrize("what", ["absent", "blob", "commit"])
def test_what_is_no_tree_of_the_repository_is_refused(lab: Lab, what: str) -> None:
    tree = {"absent": "9" * 40, "blob": lab.blob(b"x"), "commit": raw_git(lab.stock, "rev-parse", "HEAD")}[what]
    with lab.stages() as stages:
        reply = stages.answer(_screen(tree))
    assert reply.verdict is Verdict.NOT_COMPARABLE and tree in reply.reason
    assert lab.starts() == []


def test_a_tree_that_comes_later_is_measured_then(lab: Lab) -> None:
    with lab.stages() as stages:
        tree = lab.tree()
        objects = lab.stock / ".git" / "objects" / tree[:2] / tree[2:]
        held = objects.read_bytes()
        objects.unlink()
        assert stages.answer(_screen(tree)).verdict is Verdict.NOT_COMPARABLE
        objects.write_bytes(held)
        assert stages.answer(_screen(tree)).verdict is Verdict.PROMOTED


FORBIDDEN = {
    "engine/link.py": ("120000", b"/etc/passwd"),
    "engine/up.py": ("120000", b"../../outside"),
    ".gitattributes": ("100644", b"* filter=evil\n"),
    "engine/.gitattributes": ("100644", b"* filter=evil\n"),
    ".gitmodules": ("100644", b""),
    "sitecustomize.py": ("100644", b"import os\n"),
    "torch/__init__.py": ("100644", b"import os\n"),
    "engine/a\\b.py": ("100644", b""),
    "engine/bell\a.py": ("100644", b""),
}


@pytest.mark.parametrize("path", FORBIDDEN)
def test_paths_that_no_delta_may_touch_are_refused_by_name(lab: Lab, path: str) -> None:
    mode, data = FORBIDDEN[path]
    tree = lab.tree({path: (mode, lab.blob(data))})
    with lab.stages() as stages:
        reply = stages.answer(_screen(tree))
    assert reply.verdict is Verdict.NOT_COMPARABLE
    assert path.replace("\a", " ") in reply.reason
    assert lab.starts() == []


def test_a_submodule_is_refused(lab: Lab) -> None:
    tree = lab.tree({"engine/other": ("160000", raw_git(lab.stock, "rev-parse", "HEAD"))})
    with lab.stages() as stages:
        reply = stages.answer(_screen(tree))
    assert reply.verdict is Verdict.NOT_COMPARABLE and "engine/other" in reply.reason


def test_a_delta_of_any_size_is_refused_before_it_is_made(lab: Lab) -> None:
    tree = lab.tree({"engine/weights.bin": b"\0" * (17 << 20)})
    with lab.stages() as stages:
        reply = stages.answer(_screen(tree))
    assert reply.verdict is Verdict.NOT_COMPARABLE and "engine/weights.bin" in reply.reason


def test_unit_tests_of_a_change_may_lie_beside_the_engine(lab: Lab) -> None:
    tree = lab.tree({"tests/test_fast.py": b"def test_fast(): assert True\n", "engine/fast.py": b"fast = 1\n"})
    with lab.stages() as stages:
        assert stages.answer(_screen(tree)).verdict is Verdict.PROMOTED


@pytest.mark.parametrize("kind", ["screen", "force", "promote", "final"])
def test_stock_itself_has_no_effect_and_is_not_measured(lab: Lab, kind: Kind) -> None:
    with lab.stages() as stages:
        reply = stages.answer(Question(kind=kind, tree=lab.base))
    assert reply.verdict is Verdict.NO_EFFECT and reply.seconds == 0
    assert lab.starts() == []


def test_stock_with_other_flags_is_measured_with_them(lab: Lab) -> None:
    with lab.stages() as stages:
        stages.answer(_screen(lab.base, flags=["--fast"]))
    (start,) = lab.starts("screen")
    assert "--candidate-flag=--fast" in start["argv"]
    assert start["argv"][1] != start["argv"][2], "the same folder twice would be stock without the flag"


def test_a_stock_that_was_moved_is_noticed(lab: Lab) -> None:
    raw_git(lab.stock, "commit", "--quiet", "--allow-empty", "-m", "Another")
    (lab.stock / "README.md").write_text("Another engine.\n")
    raw_git(lab.stock, "commit", "--quiet", "--all", "-m", "Another")
    raw_git(lab.stock, "update-ref", "refs/specpilot/stock", "HEAD")
    with lab.stages() as stages:
        reply = stages.answer(Question(kind="noise"))
    assert reply.verdict is Verdict.INFRA and "mark of stock was moved" in reply.reason
    assert lab.starts() == []


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"vary": ["model_path"]}, "model_path"),
        ({"vary": ["num_threads"]}, "num_threads"),
        ({"vary": ["a\nb"]}, "a"),
        ({"flags": ["--x\0"]}, "--x"),
        ({"flags": [""]}, "flag"),
    ],
)
def test_words_that_may_not_be_asked_are_refused(lab: Lab, more: dict[str, list[str]], word: str) -> None:
    with lab.stages() as stages:
        reply = stages.answer(_screen(lab.tree(), **more))
    assert reply.verdict is Verdict.NOT_COMPARABLE and word in reply.reason
    assert lab.starts() == []


def test_a_question_without_a_tree_is_refused(lab: Lab) -> None:
    with lab.stages() as stages:
        assert stages.answer(Question(kind="promote")).verdict is Verdict.NOT_COMPARABLE
