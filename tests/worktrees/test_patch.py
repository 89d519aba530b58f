"""Patches in: applied exactly or refused, and never a byte outside the tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mini_repo import FILES, head_tree, names, new_file, raw_git, snapshot

from specpilot_cli.worktrees import patch
from specpilot_cli.worktrees.patch import PatchDoesNotApply, PatchUnsafe, apply, link_stays_inside, path_fault


def rename(old: str, new: str) -> bytes:
    """A git patch that renames one file as it is."""
    return f"diff --git a/{old} b/{new}\nsimilarity index 100%\nrename from {old}\nrename to {new}\n".encode()


def refused(repo: Path, data: bytes, error: type[Exception] | tuple[type[Exception], ...] = PatchUnsafe) -> str:
    """Apply, which must fail and must not have written a file anywhere around the repository; the message."""
    (repo.parent / "victim").write_bytes(b"intact\n")
    before, own = snapshot(repo.parent), names(repo / ".git")
    with pytest.raises(error) as caught:
        apply(repo, head_tree(repo), data, name="delta.patch")
    assert snapshot(repo.parent) == before
    assert names(repo / ".git") == own
    assert raw_git(repo, "status", "--porcelain") == ""
    assert str(caught.value).count("\n") <= 2
    assert "delta.patch" in str(caught.value)
    return str(caught.value)


ANY = (PatchUnsafe, PatchDoesNotApply)
TRAVERSALS = ["../victim", "engine/../../victim", "engine/../server.py", "./x"]


@pytest.mark.parametrize("name", TRAVERSALS)
def test_traversal(repo: Path, name: str) -> None:
    refused(repo, new_file(name), ANY)


@pytest.mark.parametrize("name", TRAVERSALS)
def test_rename_traversal(repo: Path, name: str) -> None:
    refused(repo, rename("engine/server.py", name), ANY)
    refused(repo, rename(name, "engine/got.py"), ANY)


def test_absolute_paths(repo: Path) -> None:
    target = repo.parent / "victim"
    for left, right in ((f"a/{target}", f"b/{target}"), (str(target), str(target))):
        data = f"diff --git {left} {right}\n--- {left}\n+++ {right}\n@@ -1 +1 @@\n-intact\n+broken\n".encode()
        refused(repo, data, ANY)
    plain = f"--- {target}\n+++ {target}\n@@ -1 +1 @@\n-intact\n+broken\n".encode()
    refused(repo, plain, ANY)


@pytest.mark.parametrize(
    "name",
    [
        ".git/hooks/post-checkout",
        ".GIT/config",
        "engine/.git/config",
        ".git./config",
        ".git /config",
        "git~1/config",
        ".git\u200c/config",
        ".ｇｉｔ/config",
        ".git:x/config",
        ".gitattributes",
        "engine/.gitAttributes",
        ".gitmodules",
    ],
)
def test_gits_own_files(repo: Path, name: str) -> None:
    refused(repo, new_file(name), ANY)
    assert path_fault(name) is not None  # by our own rule too, whatever git refuses


@pytest.mark.parametrize("name", [r"a\\b", r"engine\\..\\..\\victim", r"C\:x", r"a\nb", r"a\tb", r"\377", r"a\033[2Jb"])
def test_names_that_mean_something_else_elsewhere(repo: Path, name: str) -> None:
    refused(repo, new_file(name, quoted=True), ANY)


def test_submodules(repo: Path) -> None:
    commit = raw_git(repo, "rev-parse", "HEAD")
    message = refused(repo, new_file("vendor", mode="160000", content=f"Subproject commit {commit}\n"))
    assert "submodule" in message


@pytest.mark.parametrize(
    "target",
    ["/etc/passwd", "..", "../victim", "../../x", "ops/../../../victim", ".git/config", "../.git/config", "a\\b"],
)
def test_links_out_of_the_tree(repo: Path, target: str) -> None:
    name = "engine/link" if target.count("..") != 1 or "git" in target else "link"
    message = refused(repo, new_file(name, mode="120000", content=target))
    assert "symbolic link" in message


@pytest.mark.parametrize(("link", "target"), [("engine/alias.py", "model.py"), ("engine/ops/up", "../server.py")])
def test_links_inside_the_tree_are_fine(repo: Path, link: str, target: str) -> None:
    applied = apply(repo, head_tree(repo), new_file(link, mode="120000", content=target))
    assert [(change.path, change.new_mode) for change in applied.changes] == [(link, "120000")]


def test_a_link_behind_a_link_cannot_climb(tmp_path: Path) -> None:
    """`p/q/d -> ../../r`, `p/q/e -> d/../../victim`: inside by its text, outside when the kernel follows it."""
    (tmp_path / "tree/p/q").mkdir(parents=True)
    (tmp_path / "tree/r").mkdir()
    (tmp_path / "victim").write_text("outside")
    (tmp_path / "tree/p/q/d").symlink_to("../../r")
    (tmp_path / "tree/p/q/e").symlink_to("d/../../victim")
    assert (tmp_path / "tree/p/q/e").read_text() == "outside"
    assert link_stays_inside("p/q/d", "../../r")
    assert not link_stays_inside("p/q/e", "d/../../victim")


def test_writing_through_a_link(repo: Path) -> None:
    """A link and a file behind it in one patch; a file behind a link that stock has."""
    both = new_file("door", mode="120000", content="engine") + new_file("door/x.py")
    refused(repo, both, PatchDoesNotApply)
    (repo / "stock-door").symlink_to("..")
    raw_git(repo, "add", "stock-door")
    raw_git(repo, "commit", "--quiet", "-m", "door")
    refused(repo, new_file("stock-door/victim2"), PatchDoesNotApply)


def test_a_file_turned_into_a_link(repo: Path) -> None:
    old = raw_git(repo, "rev-parse", "HEAD:engine/no_newline.py")
    head = "diff --git a/engine/no_newline.py b/engine/no_newline.py\nold mode 100644\nnew mode 120000\n"
    refused(repo, f"{head}index {old}..{old}\n".encode(), ANY)


@pytest.mark.parametrize("data", [b"", b"\n", b"hello\n", b"\0" * 100, b"diff --git a/x b/x\n", bytes(range(256))])
def test_what_is_no_patch(repo: Path, data: bytes) -> None:
    refused(repo, data, PatchDoesNotApply)


def edit_of(repo: Path, line: bytes, new: bytes) -> bytes:
    """A patch that changes one line of the model."""
    model = repo / "engine/model.py"
    model.write_bytes(FILES["engine/model.py"].replace(line, new))
    delta = raw_git(repo, "diff", "--binary", "--full-index").encode() + b"\n"
    raw_git(repo, "checkout", "--quiet", "--", ".")
    return delta


def test_no_fuzz(repo: Path) -> None:
    """One context line that differs is a refusal (patch(1) would apply it with fuzz 1)."""
    delta = edit_of(repo, b"layer_20 = 20\n", b"layer_20 = 21\n")
    assert apply(repo, head_tree(repo), delta).paths == ("engine/model.py",)
    message = refused(repo, delta.replace(b" layer_17 = 17\n", b" layer_17 = 18\n"), PatchDoesNotApply)
    assert "engine/model.py" in message


def test_a_truncated_or_damaged_binary_payload(repo: Path) -> None:
    (repo / "engine/table.bin").write_bytes(os.urandom(900))
    delta = raw_git(repo, "diff", "--binary", "--full-index").encode() + b"\n\n"
    raw_git(repo, "checkout", "--quiet", "--", ".")
    assert apply(repo, head_tree(repo), delta).paths == ("engine/table.bin",)
    refused(repo, delta[: len(delta) // 2], PatchDoesNotApply)
    payload = delta.index(b"\nz") + 40
    refused(repo, delta[:payload] + bytes([delta[payload] ^ 1]) + delta[payload + 1 :], PatchDoesNotApply)


def test_all_or_nothing(repo: Path) -> None:
    good = new_file("engine/good.py")
    head = b"diff --git a/engine/gone.py b/engine/gone.py\n--- a/engine/gone.py\n+++ b/engine/gone.py\n"
    refused(repo, good + head + b"@@ -1 +1 @@\n-a\n+b\n", PatchDoesNotApply)


def test_size_limits(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patch, "MAX_BYTES", 100)
    assert "larger" in refused(repo, new_file("engine/x.py") * 2)
    monkeypatch.setattr(patch, "MAX_BYTES", 10**6)
    monkeypatch.setattr(patch, "MAX_PATHS", 3)
    assert "4 paths" in refused(repo, b"".join(new_file(f"engine/x{n}.py") for n in range(4)))
    assert "longer" in refused(repo, new_file("/".join(["d" * 200] * 6)))


def test_a_directory_prefix(repo: Path) -> None:
    applied = apply(repo, head_tree(repo), new_file("ops/tree.py"), directory="engine")
    assert applied.paths == ("engine/ops/tree.py",)
