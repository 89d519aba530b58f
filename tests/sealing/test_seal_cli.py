"""`specpilot seal` and `specpilot seal verify` as processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.cli import Cli
from support.sealed import Chain

FOUR = ("pair-1.json", "pair-2.json", "forced-1.json", "forced-2.json")


@pytest.fixture
def at(cli: Cli, made: Path) -> Cli:
    """The command in a folder with the evidence; the user has no key yet."""
    for name in (*FOUR, "noise.json"):
        shutil.copy(made / name, cli.cwd / name)
    return cli


def test_seal_then_verify(at: Cli) -> None:
    result = at("seal", *FOUR, "noise.json", "-o", "seal.json").expect(0, "seal.json\n")
    assert "SEALED: tree 2222" in result.err and "next: specpilot seal verify seal.json" in result.err
    verified = at("seal", "verify", "seal.json").expect(0)
    statement = json.loads(verified.out)
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["subject"] == [{"name": "miniengine", "digest": {"gitTree": "2" * 40}}]
    assert [r["name"] for r in statement["predicate"]["evidence"]] == sorted([*FOUR, "noise.json"])


def test_seal_make_is_the_long_form(at: Cli) -> None:
    at("seal", "make", *FOUR, "-o", "seal.json").expect(0, "seal.json\n")


def test_seal_on_stdout(at: Cli) -> None:
    assert json.loads(at("seal", *FOUR, "-o", "-").expect(0).out)["schema"] == "specpilot.seal/1"


def test_refusal_leaves_no_file_and_no_key(at: Cli, hermetic: Path) -> None:
    at("seal", *FOUR[:3], "-o", "seal.json").expect(3, "")
    assert not (at.cwd / "seal.json").exists() and not (hermetic / "config").exists()


def test_negative_evidence(cli: Cli) -> None:
    Chain(cli.cwd, speed=1.0).write()
    result = cli("seal", *FOUR, "-o", "seal.json").expect(1, "")
    assert "NO_EFFECT" in result.err and not (cli.cwd / "seal.json").exists()


def test_changed_file_is_named(at: Cli) -> None:
    at("seal", *FOUR, "-o", "seal.json").expect(0)
    path = at.cwd / "forced-2.json"
    path.write_bytes(path.read_bytes().replace(b"LOSSLESS", b"LOSSLESs"))
    result = at("seal", "verify", "seal.json").expect(1, "")
    assert "forced-2.json: changed since it was sealed" in result.err


def test_damaged_seal_and_no_seal(at: Cli) -> None:
    at("seal", *FOUR, "-o", "seal.json").expect(0)
    data = (at.cwd / "seal.json").read_bytes()
    (at.cwd / "seal.json").write_bytes(data + b" ")
    assert "seal.json: damaged" in at("seal", "verify", "seal.json").expect(3, "").err
    (at.cwd / "seal.json").write_bytes(data[: len(data) // 2])
    at("seal", "verify", "seal.json").expect(3, "")
    at("seal", "verify", "pair-1.json").expect(3, "")
    at("seal", "verify", "absent.json").expect(3, "")


def test_seal_of_a_stranger(at: Cli, made: Path) -> None:
    shutil.copy(made / "seal.json", at.cwd / "seal.json")
    result = at("seal", "verify", "seal.json").expect(1, "")
    assert "not trusted here: SHA256:" in result.err
    at("seal", "verify", "seal.json", "--allowed-signers", made / "config" / "allowed_signers").expect(0)


def test_own_key(at: Cli, made: Path) -> None:
    at("seal", *FOUR, "--key", made / "config" / "controller_ed25519", "-o", "seal.json").expect(0)
    at("seal", "verify", "seal.json").expect(1)
    at("seal", "verify", "seal.json", "--allowed-signers", made / "config" / "allowed_signers").expect(0)
    at("seal", *FOUR, "--key", "absent", "-o", "other.json").expect(4, "")


def test_usage(cli: Cli) -> None:
    cli("seal").expect(2)
    cli("seal", "--key", "x").expect(2)
    cli("seal", "verify").expect(2)
