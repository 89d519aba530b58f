"""Signatures by `ssh-keygen -Y` (OpenSSH's SSHSIG format, PROTOCOL.sshsig), offline, without a Python dependency."""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.core.paths import config_dir

NAMESPACE = "specpilot-seal"
PRINCIPAL = "specpilot-controller"
KEY_NAME, SIGNERS_NAME = "controller_ed25519", "allowed_signers"
_HEAD, _TAIL, _COLUMNS = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----", 70


class MalformedSignature(Exception):
    """Not an SSHSIG in the one form that `ssh-keygen` writes."""


def _ssh_keygen(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    try:
        return subprocess.run(["ssh-keygen", *args], input=stdin, capture_output=True, env=env, timeout=60, check=False)
    except FileNotFoundError:
        raise EnvironmentUnusable(
            "ssh-keygen was not found.", "Seals are signed and checked with it.", "Install the OpenSSH client."
        ) from None
    except subprocess.TimeoutExpired:
        raise ExternalFailed("ssh-keygen did not answer within 60 s.") from None


def _checked(*args: str, stdin: bytes = b"") -> bytes:
    done = _ssh_keygen(*args, stdin=stdin)
    if done.returncode != 0:
        raise ExternalFailed(f"ssh-keygen {args[0]} failed.", done.stderr.decode(errors="replace").strip())
    return done.stdout


def default_key() -> Path:
    """The controller's key in the user's configuration; made on first use, with `allowed_signers` beside it.

    Raises:
        EnvironmentUnusable: the folder cannot be written. ExternalFailed: ssh-keygen failed.
    """
    from filelock import FileLock

    folder = config_dir()
    key = folder / KEY_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(folder / ".key.lock"):
            if not key.exists():
                _checked("-q", "-t", "ed25519", "-N", "", "-C", "specpilot controller", "-f", str(key))
            _trust(folder / SIGNERS_NAME, public_key(key))
    except OSError as error:
        raise EnvironmentUnusable(f"{folder}: no key can be kept there.", str(error)) from None
    return key


def _trust(signers: Path, public: str) -> None:
    entry = f'{PRINCIPAL} namespaces="{NAMESPACE}" {public}\n'
    known = signers.read_text() if signers.exists() else ""
    if entry not in known:
        signers.write_text(known + entry)


def public_key(key: Path) -> str:
    """Type and base64 of a private key's public half.

    Raises:
        EnvironmentUnusable: there is no such key, others can read it, or it has a passphrase.
    """
    if not key.is_file():
        raise EnvironmentUnusable(f"{key}: there is no such key.")
    if key.stat().st_mode & 0o077:
        raise EnvironmentUnusable(f"{key}: others can read the key.", "", f"chmod 600 {key}")
    done = _ssh_keygen("-y", "-P", "", "-f", str(key))
    if done.returncode != 0:
        raise EnvironmentUnusable(f"{key}: not a usable key.", done.stderr.decode(errors="replace").strip())
    return " ".join(done.stdout.decode().split()[:2])


def sign(message: bytes, key: Path) -> str:
    """Armoured signature of `message`.

    Raises:
        ExternalFailed: ssh-keygen would not sign, or wrote another armour than `key_of` accepts.
    """
    signature = _checked("-q", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), stdin=message).decode()
    try:
        key_of(signature)
    except MalformedSignature as error:
        raise ExternalFailed("ssh-keygen wrote a signature of an unknown form.", str(error)) from None
    return signature


def key_of(signature: str) -> str:
    """The public key (type and base64) that an armoured signature names. Nothing is verified.

    Base64 has several spellings of the same bytes; only the one that ssh-keygen writes is accepted, so that every
    character of a seal counts.

    Raises:
        MalformedSignature: not an SSHSIG, or spelt otherwise.
    """
    lines = signature.split("\n")
    try:
        blob = base64.b64decode("".join(lines[1:-2]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedSignature(str(error)) from None
    if signature != _armour(blob):
        raise MalformedSignature("not the armour that ssh-keygen writes")
    if blob[:6] != b"SSHSIG" or len(blob) < 14:
        raise MalformedSignature("no SSHSIG header")
    (length,) = struct.unpack(">I", blob[10:14])
    return _key_text(blob[14 : 14 + length])


def _armour(blob: bytes) -> str:
    text = base64.b64encode(blob).decode()
    lines = [text[i : i + _COLUMNS] for i in range(0, len(text), _COLUMNS)]
    return "\n".join([_HEAD, *lines, _TAIL, ""])


def _key_text(blob: bytes) -> str:
    if len(blob) < 4:
        raise MalformedSignature("no public key")
    (length,) = struct.unpack(">I", blob[:4])
    kind = blob[4 : 4 + length]
    if not kind.isascii() or not kind:
        raise MalformedSignature("no key type")
    return f"{kind.decode()} {base64.b64encode(blob).decode()}"


def fingerprint(public: str) -> str:
    """`SHA256:…` as `ssh-keygen -l` prints it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _with_signature(signature: str, args: Sequence[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    with TemporaryDirectory(prefix="specpilot-seal-") as folder:
        path = Path(folder) / "signature"
        path.write_text(signature)
        return _ssh_keygen(*args, "-n", NAMESPACE, "-s", str(path), stdin=stdin)


def is_known(signature: str, signer: str, allowed_signers: Path) -> bool:
    """Whether the signature's key belongs to `signer` in an `allowed_signers` file (a missing file knows nobody)."""
    if not allowed_signers.is_file():
        return False
    done = _with_signature(signature, ("-Y", "find-principals", "-f", str(allowed_signers)))
    return done.returncode == 0 and signer in done.stdout.decode(errors="replace").split("\n")


def is_valid(message: bytes, signature: str, signer: str, allowed_signers: Path) -> bool:
    """Whether `signer` signed exactly these bytes for this namespace."""
    args = ("-Y", "verify", "-f", str(allowed_signers), "-I", signer)
    return _with_signature(signature, args, stdin=message).returncode == 0
