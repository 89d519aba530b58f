"""A tree id is over the bytes an engine would load, whatever the repository's settings say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.mini_repo import head_tree, mini_repo, raw_git

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.worktrees.git import base_tree, has_tree, tree_id


def test_clean_worktree_has_the_tree_of_head(repo: Path) -> None:
    assert tree_id(repo) == head_tree(repo) == base_tree(repo)


def test_a_modified_file_counts_and_the_index_is_left_alone(repo: Path) -> None:
    (repo / "engine/server.py").write_bytes(b"staged\n")
    raw_git(repo, "add", "engine/server.py")
    (repo / "engine/server.py").write_bytes(b"on disk\n")
    index = (repo / ".git/index").read_bytes()
    found = tree_id(repo)
    assert (repo / ".git/index").read_bytes() == index
    assert raw_git(repo, "cat-file", "blob", f"{found}:engine/server.py") == "on disk"


def test_the_id_is_what_git_would_commit(repo: Path) -> None:
    (repo / "engine/model.py").unlink()
    (repo / "engine/server.py").write_bytes(b"other\n")
    (repo / "tools/run.sh").chmod(0o644)
    (repo / "engine/new.py").write_bytes(b"new\n")
    raw_git(repo, "add", "engine/new.py")
    found = tree_id(repo)
    raw_git(repo, "add", "--all")
    raw_git(repo, "commit", "--quiet", "-m", "all")
    assert found == head_tree(repo) == tree_id(repo)


HIDDEN = ["engine/extra.py", "engine/secret.py", "a.log", "deep/er/x.so", "engine/model.pyc"]
IMPORTABLE = ["engine/__pycache__/evil.py", "engine/__pycache__/evil.pyc"]


@pytest.mark.parametrize("name", HIDDEN + IMPORTABLE)
def test_untracked_files_are_refused_even_where_git_ignores_them(repo: Path, name: str) -> None:
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/exclude").write_text("extra.py\n*.so\n*.pyc\n")
    (repo / name).parent.mkdir(parents=True, exist_ok=True)
    (repo / name).write_bytes(b"x")
    with pytest.raises(EnvironmentUnusable, match="untracked") as caught:
        tree_id(repo)
    assert name in str(caught.value)
    assert tree_id(repo, untracked_files="include") != head_tree(repo)


def test_by_products_of_running_python_do_not_count(repo: Path) -> None:
    for name in (
        "engine/__pycache__/model.cpython-311.pyc",
        "__pycache__/x.cpython-311.pyc.140072",
        ".pytest_cache/v/x",
        ".mypy_cache/y",
    ):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_bytes(b"x")
    assert tree_id(repo) == head_tree(repo) == tree_id(repo, untracked_files="include")


@pytest.mark.parametrize("bit", ["--assume-unchanged", "--skip-worktree"])
def test_index_bits_hide_nothing(repo: Path, bit: str) -> None:
    raw_git(repo, "update-index", bit, "engine/server.py")
    (repo / "engine/server.py").write_bytes(b"hidden change\n")
    assert raw_git(repo, "status", "--porcelain") == ""
    assert tree_id(repo) != head_tree(repo)


def test_a_clean_filter_hides_nothing(repo: Path) -> None:
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/attributes").write_text("engine/server.py filter=stock\n")
    raw_git(repo, "config", "filter.stock.clean", "git cat-file blob HEAD:engine/server.py")
    (repo / "engine/server.py").write_bytes(b"hidden change\n")
    assert raw_git(repo, "diff", "HEAD", "--stat") == ""
    assert tree_id(repo) != head_tree(repo)


def test_line_end_conversion_hides_nothing(repo: Path) -> None:
    (repo / ".gitattributes").write_bytes(b"*.py text=auto\n")
    raw_git(repo, "add", ".gitattributes")
    raw_git(repo, "commit", "--quiet", "-m", "attributes")
    before = tree_id(repo)
    (repo / "engine/server.py").write_bytes((repo / "engine/server.py").read_bytes().replace(b"\n", b"\r\n"))
    assert tree_id(repo) != before


def test_the_executable_bit_counts_where_the_repository_ignores_it(repo: Path) -> None:
    raw_git(repo, "config", "core.fileMode", "false")
    (repo / "engine/server.py").chmod(0o755)
    assert tree_id(repo) != head_tree(repo)


def test_the_callers_git_environment_does_not_matter(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = mini_repo(tmp_path / "other", {"a": b"a\n"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git/index"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "broken")
    found = tree_id(repo)
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_CONFIG_COUNT"):
        monkeypatch.delenv(name)
    assert found == head_tree(repo)


def test_nested_repositories_and_submodules_are_refused(repo: Path) -> None:
    mini_repo(repo / "vendor", {"a": b"a\n"})
    with pytest.raises(EnvironmentUnusable, match="untracked"):
        tree_id(repo)
    with pytest.raises(EnvironmentUnusable, match="repository of its own"):
        tree_id(repo, untracked_files="include")
    raw_git(repo, "-c", "advice.addEmbeddedRepo=false", "add", "vendor")
    with pytest.raises(EnvironmentUnusable, match="vendor"):
        tree_id(repo)


def test_a_tracked_folder_that_became_a_link_is_refused(repo: Path, tmp_path: Path) -> None:
    (repo / "engine/ops").rename(tmp_path / "elsewhere")
    (repo / "engine/ops").symlink_to(tmp_path / "elsewhere")
    for untracked in ("refuse", "include"):
        with pytest.raises(EnvironmentUnusable):
            tree_id(repo, untracked_files=untracked)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", ["engine", "../plain", "../missing", "README.md"])
def test_only_the_root_of_a_worktree_has_an_id(repo: Path, where: str) -> None:
    (repo.parent / "plain").mkdir()
    with pytest.raises(EnvironmentUnusable):
        tree_id(repo / where)


def test_a_repository_without_a_commit_is_refused(tmp_path: Path) -> None:
    raw_git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(EnvironmentUnusable, match="no commit"):
        tree_id(tmp_path / "empty")


def test_base_is_the_root_commit_and_the_mark_wins(repo: Path) -> None:
    stock = head_tree(repo)
    (repo / "engine/server.py").write_bytes(b"second\n")
    raw_git(repo, "commit", "--quiet", "--all", "-m", "second")
    assert base_tree(repo) == stock
    raw_git(repo, "update-ref", "refs/specpilot/stock", "HEAD")
    assert base_tree(repo) == head_tree(repo) != stock


def test_two_roots_without_a_mark_are_refused(repo: Path) -> None:
    other = raw_git(repo, "commit-tree", "HEAD^{tree}", "-m", "another root")
    raw_git(repo, "merge", "--quiet", "--allow-unrelated-histories", "-m", "both", other)
    with pytest.raises(EnvironmentUnusable, match="2 root commits"):
        base_tree(repo)


def test_has_tree(repo: Path) -> None:
    assert has_tree(repo, head_tree(repo))
    assert not has_tree(repo, "1" * 40)


def test_unreadable_file_is_an_environment_error(repo: Path) -> None:
    if os.geteuid() == 0:
        (repo / "engine/server.py").unlink()
        os.mkfifo(repo / "engine/server.py")  # root reads everything; a pipe cannot be hashed for anybody
    else:
        (repo / "engine/server.py").chmod(0o000)
    with pytest.raises(EnvironmentUnusable):
        tree_id(repo)
