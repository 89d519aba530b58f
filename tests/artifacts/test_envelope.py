"""The envelope: what goes in comes out, and nothing else gets in."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from support.samples import every, profile_artifact

from specpilot_cli.artifacts import io, registry, schemas
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable


@pytest.mark.parametrize("name", registry.NAMES)
def test_committed_schema_is_the_generated_one(name: str) -> None:
    assert (schemas.FOLDER / f"{name}.json").read_text(encoding="utf-8") == schemas.render(name)


@pytest.mark.parametrize("name", sorted(every()))
def test_artifact_round_trips_and_fits_its_schema(name: str, tmp_path: Path) -> None:
    artifact = every()[name]
    path = tmp_path / "a.json"
    path.write_bytes(io.dump(artifact))
    loaded = io.load(str(path), name)
    assert loaded.artifact == artifact
    assert io.dump(loaded.artifact) == path.read_bytes()
    jsonschema.validate(json.loads(path.read_bytes()), json.loads(schemas.render(name)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "specpilot.profile/2"}, "schema is 'specpilot.profile/2'"),
        ({"schema": "specpilot.ceiling/1"}, "schema is 'specpilot.ceiling/1'"),
        ({"schema": 3}, "not a SpecPilot artifact"),
        ({"complete": False}, "incomplete"),
        ({"complete": 1}, "complete"),
        ({"surprise": 1}, "surprise"),
        ({"created": "yesterday"}, "created"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], message: str, tmp_path: Path) -> None:
    document = json.loads(io.dump(profile_artifact())) | change
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputUnusable) as caught:
        io.load(str(path), "profile")
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 3


def test_newer_minor_is_read_without_its_new_fields(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(io.dump(profile_artifact())) | {"schema_minor": 1, "later": 1}
    path = tmp_path / "a.json"
    path.write_text(json.dumps(document))
    assert io.load(str(path), "profile").artifact.body == profile_artifact().body
    assert "newer minor" in capsys.readouterr().err


def test_digest_is_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    plain, spaced = tmp_path / "a.json", tmp_path / "b.json"
    plain.write_bytes(io.dump(profile_artifact()))
    spaced.write_bytes(plain.read_bytes() + b"\n")
    first, second = io.load(str(plain)), io.load(str(spaced))
    assert first.artifact == second.artifact
    assert first.source.sha256 != second.source.sha256


def test_writer_names_are_unique_in_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    out = f"{tmp_path}/runs/"
    paths = []
    for _ in range(3):
        writer = io.Writer(out, "profile")
        writer.finish(profile_artifact())
        paths.append(writer.path)
    assert [p.name for p in paths if p] == [
        "20231114T221320Z-profile.json",
        "20231114T221320Z-profile-1.json",
        "20231114T221320Z-profile-2.json",
    ]


def test_unwritable_folder_fails_before_any_work(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EnvironmentUnusable):
        io.Writer(str(blocked / "a.json"), "profile").checkpoint(profile_artifact())


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    io.write_atomic(path, b"old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(EnvironmentUnusable, match=r"a\.json"):
        io.write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
