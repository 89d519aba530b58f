"""Stock SGLang: one identity from a wheel and from a clone, and every way in which a source is not stock."""

from __future__ import annotations

import subprocess
import zipfile
from pathlib import Path

import pytest
from engine_sglang.wheels import BUILT, FILES, MakeWheel, git, tree_of_files
from support.cli import Cli

from specpilot_cli.core.errors import EnvironmentUnusable, UsageFault
from specpilot_cli.engine import stock
from specpilot_cli.engine.sglang import source
from specpilot_cli.engine.sglang.manifest import TREE, Manifest, stock_manifest
from specpilot_cli.engine.sglang.source import init_sglang, read_source
from specpilot_cli.worktrees.git import base_tree, tree_id


def test_wheel_and_clone_give_the_same_tree(
    tmp_path: Path, make_wheel: MakeWheel, clone: Path, manifest: Manifest
) -> None:
    first, quiet = init_sglang(tmp_path / "a", wheel=make_wheel(), manifest=manifest)
    second, note = init_sglang(tmp_path / "b", clone=clone, manifest=manifest)
    assert (first.tree, first.commit) == (second.tree, second.commit)
    assert first.tree == manifest.tree == tree_id(first.path) == base_tree(second.path)
    assert quiet == ""
    assert note.startswith("3 files") and "sglang/notes.rst" in note and "sglang/_version.py" in note
    assert not (first.path / "sglang/_version.py").exists()


def test_it_is_idempotent_and_refuses_another_folder(
    tmp_path: Path, make_wheel: MakeWheel, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = init_sglang(tmp_path / "a", wheel=make_wheel(), manifest=manifest)
    monkeypatch.setattr(source, "_pip_download", lambda *_: pytest.fail("the network was asked"))
    assert init_sglang(tmp_path / "a", manifest=manifest)[0] == made
    assert init_sglang(tmp_path / "a", wheel=make_wheel(), manifest=manifest)[0] == made
    (tmp_path / "a/sglang/__init__.py").write_bytes(b"changed")
    with pytest.raises(UsageFault, match="not empty"):
        init_sglang(tmp_path / "a", wheel=make_wheel(), manifest=manifest)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_changed_or_missing_file_is_named(make_wheel: MakeWheel, manifest: Manifest, name: str) -> None:
    for data in (b"other\n", None):
        for recorded in (False, True):  # damaged on the way, or packed that way
            with pytest.raises(EnvironmentUnusable) as raised:
                read_source(make_wheel({name: data}, recorded=recorded), None, manifest)
            assert name in str(raised.value)


def test_a_file_too_many_is_named(make_wheel: MakeWheel, manifest: Manifest) -> None:
    for recorded in (False, True):
        with pytest.raises(EnvironmentUnusable, match=r"sglang/evil\.py"):
            read_source(make_wheel({"sglang/evil.py": b"1"}, recorded=recorded), None, manifest)


def test_changed_build_products_fail_only_by_record(make_wheel: MakeWheel, manifest: Manifest) -> None:
    for name in BUILT:
        with pytest.raises(EnvironmentUnusable, match=r"digest in RECORD"):
            read_source(make_wheel({name: b"x"}), None, manifest)
        assert set(read_source(make_wheel({name: b"x"}, recorded=True), None, manifest).files) == set(FILES)


def test_another_version_or_package_is_refused(tmp_path: Path, make_wheel: MakeWheel, manifest: Manifest) -> None:
    with pytest.raises(EnvironmentUnusable, match=r"is sglang 0\.5\.19"):
        read_source(make_wheel(version="0.5.19"), None, manifest)
    with zipfile.ZipFile(tmp_path / "other.whl", "w") as archive:
        archive.writestr("sglang-0.5.20.dist-info/METADATA", "Name: notsglang\nVersion: 0.5.20\n")
    with pytest.raises(EnvironmentUnusable, match="notsglang"):
        read_source(tmp_path / "other.whl", None, manifest)
    with pytest.raises(EnvironmentUnusable, match="not a readable wheel"):
        read_source(tmp_path / "absent.whl", None, manifest)
    (tmp_path / "text.whl").write_text("no archive")
    with pytest.raises(EnvironmentUnusable, match="not a readable wheel"):
        read_source(tmp_path / "text.whl", None, manifest)


def test_a_wheel_without_record_is_refused(tmp_path: Path, manifest: Manifest) -> None:
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as archive:
        archive.writestr("sglang-0.5.20.dist-info/METADATA", "Name: sglang\nVersion: 0.5.20\n")
    with pytest.raises(EnvironmentUnusable, match="RECORD is missing"):
        read_source(tmp_path / "w.whl", None, manifest)


def test_a_clone_at_another_tag_is_refused(clone: Path, manifest: Manifest) -> None:
    git(clone, "tag", "v0.5.21")
    assert read_source(None, clone, manifest).files.keys() == FILES.keys()  # both tags at one commit
    git(clone, "tag", "-d", "v0.5.20")
    with pytest.raises(EnvironmentUnusable, match=r"at v0\.5\.21, not at v0\.5\.20"):
        read_source(None, clone, manifest)


@pytest.mark.parametrize("name", ["sglang/srt/server.py", "sglang/new.py"])
def test_a_dirty_clone_is_refused(clone: Path, manifest: Manifest, name: str) -> None:
    (clone / "python" / name).write_bytes(b"print(2)\n")
    with pytest.raises(EnvironmentUnusable, match=name):
        read_source(None, clone, manifest)


@pytest.mark.parametrize("change", ["edit", "remove", "link"])
def test_a_clone_with_another_commit_is_refused_by_file(clone: Path, manifest: Manifest, change: str) -> None:
    file = clone / "python/sglang/srt/server.py"
    file.unlink()
    if change == "edit":
        file.write_bytes(b"print(2)\n")
    if change == "link":
        file.symlink_to("/etc/hostname")
    git(clone, "commit", "-qam", "changed")
    with pytest.raises(EnvironmentUnusable, match=r"sglang/srt/server\.py is (not stock's|missing)"):
        read_source(None, clone, manifest)


def test_a_repository_of_something_else_is_refused(tmp_path: Path, clone: Path, manifest: Manifest) -> None:
    tree_of_files(tmp_path / "other", {"a": b""})
    git(tmp_path / "other", "commit", "-q", "-m", "x")
    with pytest.raises(EnvironmentUnusable, match="no clone of SGLang"):
        read_source(None, tmp_path / "other", manifest)
    with pytest.raises(EnvironmentUnusable, match="not the root"):
        read_source(None, clone / "python", manifest)


def test_a_failed_download_says_how_to_go_on(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(EnvironmentUnusable) as raised:
        read_source(None, None, manifest)
    assert "--wheel" in str(raised.value)
    monkeypatch.setattr(source, "_pip_download", lambda folder, version: None)
    with pytest.raises(EnvironmentUnusable, match="pip gave no wheel"):
        read_source(None, None, manifest)


def test_the_shipped_manifest_makes_the_pinned_tree(tmp_path: Path) -> None:
    manifest = stock_manifest()
    index = "".join(f"100644 {blob}\t{name}\n" for name, blob in manifest.blobs.items())
    git(tmp_path, "init", "-q")
    subprocess.run(["git", "update-index", "--index-info"], cwd=tmp_path, input=index.encode(), check=True)
    done = subprocess.run(["git", "write-tree", "--missing-ok"], cwd=tmp_path, check=True, capture_output=True)
    assert done.stdout.decode().strip() == TREE == stock.stock_tree("sglang-0.5.20")
    assert len(manifest.blobs) == 4599


def test_the_command_refuses_with_exit_4_and_2(cli: Cli, tmp_path: Path, make_wheel: MakeWheel, clone: Path) -> None:
    wheel = make_wheel()
    done = cli("stock", "init", "wt", "--engine", "sglang-0.5.20", "--wheel", wheel).expect(4, out="")
    assert (
        "sglang/README.md is not stock's" in done.err or "is missing" in done.err
    )  # the made-up one is not the real one
    cli("stock", "init", "wt", "--engine", "sglang-0.5.20", "--wheel", wheel, "--clone", clone).expect(2, out="")
    cli("stock", "init", "wt", "--engine", "miniengine", "--wheel", wheel).expect(2, out="")
    assert not (tmp_path / "wt").exists()


@pytest.mark.slow
def test_the_published_wheel_is_stock(cli: Cli, tmp_path: Path) -> None:
    """Downloads 27 MB from the package index that pip is configured for."""
    done = cli("stock", "init", "wt", "--engine", "sglang-0.5.20", timeout=900).expect(0, out=TREE + "\n")
    assert tree_id(tmp_path / "wt") == TREE, done.err
    cli("stock", "init", "wt", "--engine", "sglang-0.5.20").expect(0, out=TREE + "\n")
