"""Every byte of a seal and of its evidence counts."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.sealed import Chain

from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.artifacts.seal import SealArtifact
from specpilot_cli.controller.judge import judge
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.core.paths import share_dir
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.sealing import sign
from specpilot_cli.sealing.make import checked, seal
from specpilot_cli.sealing.verify import (
    BadSignature,
    Changed,
    Contradiction,
    Damaged,
    Missing,
    Outcome,
    UnknownKey,
    Verified,
    verify,
)

EVIDENCE = ("pair-1.json", "pair-2.json", "forced-1.json", "forced-2.json", "thresholds.toml")


def _verify(room: Path, *folders: Path) -> Outcome:
    where = [*folders, room, share_dir("profiles")]
    return verify(str(room / "seal.json"), where, room / "config" / sign.SIGNERS_NAME, judge)


def _flip(path: Path, source: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[source.randrange(len(data))] ^= 1 << source.randrange(8)
    path.write_bytes(data)


def test_untouched_seal_holds(room: Path) -> None:
    found = _verify(room)
    assert isinstance(found, Verified) and found.signer == sign.PRINCIPAL
    assert [r.name for r in found.statement.predicate.evidence] == sorted(EVIDENCE[:4])


@pytest.mark.parametrize("name", EVIDENCE)
def test_any_flipped_bit_of_the_evidence_names_the_file(room: Path, name: str) -> None:
    shutil.copy(share_dir("profiles") / "thresholds.toml", room / "thresholds.toml")
    original, source = (room / name).read_bytes(), random.Random(name)
    for _ in range(40):
        (room / name).write_bytes(original)
        _flip(room / name, source)
        found = _verify(room)
        assert isinstance(found, Changed) and found.file == name


def test_any_flipped_bit_of_the_seal_is_found(room: Path) -> None:
    path, source = room / "seal.json", random.Random(1)
    original = path.read_bytes()
    for _ in range(300):
        path.write_bytes(original)
        _flip(path, source)
        try:
            found: Outcome | InputUnusable = _verify(room)
        except InputUnusable as error:
            found = error
        assert isinstance(found, Damaged | BadSignature | UnknownKey | InputUnusable)
        if isinstance(found, Damaged | BadSignature):
            assert found.file == "seal.json"
        if isinstance(found, InputUnusable):
            assert "seal.json" in str(found)


def test_bytes_added_removed_or_respelt(room: Path) -> None:
    path = room / "seal.json"
    original = path.read_bytes()
    respelt = json.dumps(json.loads(original)).encode()
    for data in (original + b"\n", original[:-1], respelt, original.replace(b"  ", b"\t", 1)):
        path.write_bytes(data)
        assert isinstance(_verify(room), Damaged)


@pytest.mark.parametrize(
    "field", ["created", "tool", "environment", "inputs", "caveats", "schema_minor", "signer", "public_key"]
)
def test_copies_must_be_copies(room: Path, field: str) -> None:
    """Rewritten properly, with a valid signature over an untouched statement."""
    path = room / "seal.json"
    artifact = load(str(path)).artifact
    values: dict[str, Any] = {
        "created": artifact.created.replace(year=2001),
        "tool": artifact.tool.model_copy(update={"version": "9"}),
        "environment": artifact.environment.model_copy(update={"cpu": "another"}),
        "inputs": artifact.inputs[:-1],
        "caveats": ("none",),
    }
    body: dict[str, Any] = {"signer": "somebody", "public_key": "ssh-ed25519 AAAA"}
    if field == "schema_minor":
        data = dump(artifact).replace(b'"schema_minor": 0', b'"schema_minor": 1')
    elif field in body:
        changed = artifact.body.model_copy(update={field: body[field]})
        data = dump(artifact.model_copy(update={"body": changed}))
    else:
        data = dump(artifact.model_copy(update={field: values[field]}))
    path.write_bytes(data)
    found = _verify(room)
    assert isinstance(found, UnknownKey if field == "signer" else Damaged)


def test_missing_evidence_and_another_folder(room: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(room / "pair-2.json", elsewhere / "pair-2.json")
    found = _verify(room)
    assert isinstance(found, Missing) and found.file == "pair-2.json"
    assert isinstance(_verify(room, elsewhere), Verified)


def test_unknown_key_is_named(room: Path, tmp_path: Path) -> None:
    (room / "config" / sign.SIGNERS_NAME).write_text("")
    found = _verify(room)
    assert isinstance(found, UnknownKey) and found.fingerprint.startswith("SHA256:")
    assert found.public_key == sign.public_key(room / "config" / sign.KEY_NAME)


def test_signature_for_another_purpose_is_refused(room: Path) -> None:
    """The right key in another namespace: such as a git commit's signature put to use."""
    artifact: SealArtifact = load(str(room / "seal.json")).artifact
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sign, "NAMESPACE", "git")
        signature = sign.sign(artifact.body.statement_json.encode(), room / "config" / sign.KEY_NAME)
    changed = artifact.body.model_copy(update={"signature": signature})
    (room / "seal.json").write_bytes(dump(artifact.model_copy(update={"body": changed})))
    assert isinstance(_verify(room), BadSignature | UnknownKey)


def test_signed_lie_contradicts_its_evidence(room: Path) -> None:
    """The key's owner signs a larger gain than the runs show."""
    path = room / "seal.json"
    artifact: SealArtifact = load(str(path)).artifact
    statement = artifact.body.statement_json.replace('"run1_gain":1.', '"run1_gain":8.')
    assert statement != artifact.body.statement_json
    signature = sign.sign(statement.encode(), room / "config" / sign.KEY_NAME)
    body = artifact.body.model_copy(update={"statement_json": statement, "signature": signature})
    path.write_bytes(dump(artifact.model_copy(update={"body": body})))
    found = _verify(room)
    assert isinstance(found, Contradiction) and "run1_gain" in found.why


def _statement(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, when: str) -> dict[str, Any]:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", when)
    chain = Chain(folder, seed=seed).write()
    thresholds = load_thresholds()
    evidence = checked([load(name) for name in chain.names], (), thresholds, judge)
    statement: dict[str, Any] = json.loads(seal(evidence, thresholds, sign.default_key()).body.statement_json)
    return statement


def test_sealing_twice_differs_in_time_and_samples_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _statement(tmp_path / "a", 0, monkeypatch, "1767323045")
    assert first == _statement(tmp_path / "a", 0, monkeypatch, "1767323045")
    second = _statement(tmp_path / "b", 3, monkeypatch, "1767323999")
    for statement in (first, second):
        assert statement["predicate"].pop("timeCreated")
        for resource in statement["predicate"]["evidence"]:
            assert resource["digest"].pop("sha256")
        gain, forced = statement["predicate"]["properties"]
        assert all(
            isinstance(gain["values"].pop(name), float) for name in list(gain["values"]) if "changed" not in name
        )
        assert forced["values"]["run1_tokens"] == 2400
    assert first == second
