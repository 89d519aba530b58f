"""Keys and signatures."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.sealing import sign

MESSAGE = b'{"a":1}'


@pytest.fixture
def key() -> Path:
    return sign.default_key()


def test_key_is_made_once_and_private(key: Path) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600 and stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    before = key.read_bytes(), (key.parent / sign.SIGNERS_NAME).read_bytes()
    assert sign.default_key() == key
    assert before == (key.read_bytes(), (key.parent / sign.SIGNERS_NAME).read_bytes())
    assert key.with_suffix(".pub").read_text().endswith("specpilot controller\n")


def test_signature_names_its_key_and_verifies(key: Path) -> None:
    signature, signers = sign.sign(MESSAGE, key), key.parent / sign.SIGNERS_NAME
    assert sign.key_of(signature) == sign.public_key(key)
    assert sign.is_known(signature, sign.PRINCIPAL, signers) and not sign.is_known(signature, "other", signers)
    assert sign.is_valid(MESSAGE, signature, sign.PRINCIPAL, signers)
    assert not sign.is_valid(MESSAGE + b" ", signature, sign.PRINCIPAL, signers)


def test_fingerprint_is_ssh_keygens(key: Path) -> None:
    shown = subprocess.run(["ssh-keygen", "-l", "-f", str(key)], capture_output=True, check=True, text=True).stdout
    assert sign.fingerprint(sign.public_key(key)) == shown.split()[1]


def test_every_other_spelling_of_a_signature_is_malformed(key: Path) -> None:
    signature = sign.sign(MESSAGE, key)
    spelt = (
        signature + "\n", signature.rstrip("\n"), signature.replace("\n", "\r\n"), " " + signature,
        signature.replace("SIGNATURE", "signature"), signature.replace("\n", "", 1), "", "x",
    )  # fmt: skip
    for other in spelt:
        with pytest.raises(sign.MalformedSignature):
            sign.key_of(other)


def test_unusable_keys(key: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnusable, match="no such key"):
        sign.public_key(tmp_path / "absent")
    (tmp_path / "text").write_text("no key")
    (tmp_path / "text").chmod(0o600)
    with pytest.raises(EnvironmentUnusable, match="not a usable key"):
        sign.public_key(tmp_path / "text")
    key.chmod(0o644)
    with pytest.raises(EnvironmentUnusable, match="others can read"):
        sign.public_key(key)


def test_without_ssh_keygen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnusable, match="ssh-keygen was not found"):
        sign.default_key()
