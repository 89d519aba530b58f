"""Damaged artifacts into every command that reads one: exit 2 or 3, three lines at most, no traceback, no file.

The commands run in this process through the same `_run` as `main()`, so that two hundred damaged files times every
command stay within seconds; a few go through real processes as well.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.cli import Cli
from support.fake_worktree import deployment_file, request_file, stock_worktree
from support.replay_lattices import recording, write
from support.samples import every
from support.sealed import Chain

from specpilot_cli import __main__ as entry
from specpilot_cli.artifacts import io


def lattice_index() -> bytes:
    """The index of a small recording."""
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder) / "l", recording(2, 1)).read_bytes()


SAMPLES = {name: io.dump(artifact) for name, artifact in every().items()} | {"lattice": lattice_index()}
SETUP = {"stock", "good", "fake.toml", "requests.jsonl"}
"""What stands in the folder before a command runs."""
READERS: dict[str, Callable[[str], list[str]]] = {
    "ceiling": lambda path: ["ceiling", path, "-o", "written.json"],
    "ceiling --replay": lambda path: ["ceiling", "good/profile.json", "--replay", path, "-o", "written.json"],
    "replay": lambda path: ["replay", path, "-o", "written.json"],
    "replay --cost": lambda path: ["replay", "good/lattice/lattice.json", "--cost", path, "-o", "written.json"],
    "lattice check": lambda path: ["lattice", "check", path],
    "show": lambda path: ["show", path],
    "show --json": lambda path: ["show", path, "--json"],
    "pair-run --noise-from": lambda path: [*PAIR, "stock", "--noise-from", path, "-o", "written.json"],
    "pair-run --resume": lambda path: [*PAIR, "--noise", "--resume", path, "-o", "written.json"],
    "force-tokens": lambda path: ["force-tokens", path, "--scorer", "stock", "-o", "written.json"],
    "force-tokens --phase0": lambda path: ["force-tokens", "--phase0", path, "--scorer", "stock", "-o", "written.json"],
    "force-tokens --resume": lambda path: [*FORCE, "--resume", path, "-o", "written.json"],
    "force-tokens PAIR --phase0": lambda path: [*FORCE, "--phase0", path, "-o", "written.json"],
    "seal make": lambda path: ["seal", "make", *EVIDENCE, path, "-o", "written.json"],
    "seal make --seen": lambda path: ["seal", "make", *EVIDENCE, "--seen", path, "-o", "written.json"],
    "seal verify": lambda path: ["seal", "verify", path],
}
PAIR = ["pair-run", "stock", "-d", "./fake.toml"]
FORCE = ["force-tokens", "good/pair-1.json", "--scorer", "stock"]
EVIDENCE = ["good/pair-1.json", "good/pair-2.json", "good/forced-1.json", "good/forced-2.json"]
PLAIN = (None, [], {}, 10**400, "\x1b[2J\n\n\n\n", "9" * 5000)
ODD_VALUES = st.one_of(st.sampled_from(PLAIN), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
KINDS = ("cut", "encoding", "value", "nan", "schema", "drop", "extra", "noise", "deep", "digest")
ENCODINGS = ("utf-16", "utf-32", "utf-8-sig", "cp037")


def paths_of(value: object, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every path into a JSON document."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += paths_of(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += paths_of(item, (*path, index))
    return found


def replaced(document: object, path: tuple[str | int, ...], value: object) -> bytes:
    copy = json.loads(json.dumps(document))
    target = copy
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = value
    return json.dumps(copy).replace(json.dumps(10**400), "1e400").encode()


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A valid artifact with one kind of damage that no reader may accept."""
    name = draw(st.sampled_from(sorted(SAMPLES)))
    data = SAMPLES[name]
    kind = draw(st.sampled_from(KINDS))
    document = json.loads(data)
    if kind == "cut":
        return data[: draw(st.integers(0, len(data) - 3))]
    if kind == "encoding":
        return data.decode().encode(draw(st.sampled_from(ENCODINGS)), errors="replace")
    if kind == "noise":
        return draw(st.binary(max_size=200))
    if kind == "deep":
        return b"[" * draw(st.integers(1, 100_000))
    if kind == "extra":
        return json.dumps(document | {draw(st.text(min_size=1, max_size=5)) + "_": 1}).encode()
    if kind == "schema":
        return json.dumps(
            document | {"schema": draw(st.sampled_from(["", "specpilot.profile/9", "x" * 10_000]))}
        ).encode()
    if kind == "digest":
        return replaced(document, ("tool", "tree"), draw(st.sampled_from(["", "0" * 63, "G" * 64, "0" * 65])))
    path = draw(st.sampled_from(paths_of(document)))
    if kind == "drop":
        return json.dumps(
            {k: v for k, v in document.items() if k != path[0]} if path[0] not in OPTIONAL else {}
        ).encode()
    if kind == "nan":
        return replaced(document, path, float(draw(st.sampled_from(["nan", "inf", "-inf"]))))
    return replaced(document, path, draw(ODD_VALUES))


OPTIONAL = {"inputs", "caveats", "schema_minor"}


def run(argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["specpilot", *argv])
    code = int(entry._run())
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def accepted(data: bytes) -> bool:
    """Whether the damage happened to leave a valid artifact (a changed figure is not damage that a reader can see)."""
    try:
        document = json.loads(data)
        schema = document["schema"]
    except Exception:
        return False
    names = {f"specpilot.{name}/1": name for name in SAMPLES}
    if not isinstance(schema, str) or schema not in names:
        return False
    from specpilot_cli.artifacts import registry

    try:
        registry.model(names[schema]).model_validate_json(data, strict=True)
    except Exception:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stock worktree, a deployment and a sound chain of evidence, so that only the damage can be at fault."""
    stock_worktree(tmp_path / "stock")
    deployment_file(tmp_path, request_file(tmp_path / "requests.jsonl", 8))
    Chain(tmp_path / "good").write()
    (tmp_path / "good" / "profile.json").write_bytes(SAMPLES["profile"])
    write(tmp_path / "good" / "lattice", recording(4, 1))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", sorted(READERS))
def test_two_hundred_damaged_artifacts(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    @settings(max_examples=200, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(damaged())
    def check(data: bytes) -> None:
        nonlocal refused
        if accepted(data):
            return
        path = folder / "damaged.json"
        path.write_bytes(data)
        code, out, err = run(READERS[command](path.name), capsys, monkeypatch)
        assert code in (2, 3), err
        assert out == ""
        assert len(err.splitlines()) <= 3, err
        assert "Traceback" not in err and "\x1b" not in err
        assert {p.name for p in folder.iterdir()} == {*SETUP, "damaged.json"}
        refused += 1

    check()
    assert refused >= 100  # most damages must be real ones, or the test shows nothing


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff\xfe{}", b"null", b'{"schema": "specpilot.profile/1"}', b"[" * 10_000]
)
@pytest.mark.parametrize("command", ["ceiling", "force-tokens", "seal verify", "show"])
def test_the_real_process_agrees(command: str, data: bytes, cli: Cli, folder: Path) -> None:
    result = cli(*READERS[command]("-"), stdin=data)
    assert result.rc == 3, result.err
    assert result.out == ""
    assert len(result.err.splitlines()) <= 3
    assert "Traceback" not in result.err
    assert {p.name for p in folder.iterdir()} == SETUP
