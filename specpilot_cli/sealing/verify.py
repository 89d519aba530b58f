"""`seal verify`: the signature before anything is parsed, then every byte that the statement names.

What is covered: the statement by the signature; the signature by its one accepted spelling; every other field of the
seal by comparison with the statement (or with the signature's key); the file's layout by comparison with the one way in
which artifacts are written; the evidence by its digests, and then once more by composing the statement from it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.artifacts.seal import SealArtifact, Statement
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable, SpecPilotError
from specpilot_cli.forcing.thresholds import parse_thresholds
from specpilot_cli.sealing import evidence as checks
from specpilot_cli.sealing.agree import model_difference
from specpilot_cli.sealing.evidence import PairJudge
from specpilot_cli.sealing.sign import MalformedSignature, fingerprint, is_known, is_valid, key_of
from specpilot_cli.sealing.statement import compose, environment_digest


@dataclass(frozen=True)
class Verified:
    """The seal holds."""

    statement: Statement
    signer: str
    fingerprint: str


@dataclass(frozen=True)
class Damaged:
    """The seal itself is not what `seal` wrote."""

    file: str
    why: str


@dataclass(frozen=True)
class UnknownKey:
    """Signed, but by nobody whom this machine trusts."""

    public_key: str
    fingerprint: str


@dataclass(frozen=True)
class BadSignature:
    """The statement is not what the key's owner signed."""

    file: str
    fingerprint: str


@dataclass(frozen=True)
class Missing:
    """A named file was not found."""

    file: str
    looked_in: tuple[str, ...]


@dataclass(frozen=True)
class Changed:
    """A named file has other bytes than the sealed ones."""

    file: str
    sealed_sha256: str
    found_sha256: str


@dataclass(frozen=True)
class Contradiction:
    """Signed and unchanged, but the evidence does not support the statement."""

    file: str
    why: str


Outcome = Verified | Damaged | UnknownKey | BadSignature | Missing | Changed | Contradiction


def verify(name: str, folders: Sequence[Path], allowed_signers: Path, judge: PairJudge) -> Outcome:
    """Check a seal and everything it names.

    Args:
        name: the seal's path. folders: where its evidence may lie, first hit counts.
        judge: the controller's judgement of a pair-run.
    Raises:
        InputUnusable: the file is no seal artifact at all.
    """
    data = _read(name)
    artifact: SealArtifact = load(name, "seal").artifact
    file = Path(name).name
    if dump(artifact) != data:
        return Damaged(file, "its bytes are not as `seal` writes them")
    try:
        public = key_of(artifact.body.signature)
    except MalformedSignature as error:
        return Damaged(file, f"its signature is malformed: {error}")
    if public != artifact.body.public_key:
        return Damaged(file, "its public key is not the signature's")
    if not is_known(artifact.body.signature, artifact.body.signer, allowed_signers):
        return UnknownKey(public, fingerprint(public))
    message = artifact.body.statement_json.encode()
    if not is_valid(message, artifact.body.signature, artifact.body.signer, allowed_signers):
        return BadSignature(file, fingerprint(public))
    return _signed(artifact, file, folders, judge, fingerprint(public))


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except (OSError, ValueError) as error:
        raise InputUnusable(f"{name}: cannot be read.", str(error)) from None


def _signed(artifact: SealArtifact, file: str, folders: Sequence[Path], judge: PairJudge, mark: str) -> Outcome:
    """From here on the statement's bytes are known to be the signer's."""
    try:
        statement = Statement.model_validate_json(artifact.body.statement_json, strict=True)
    except ValidationError as error:
        return Contradiction(file, f"the signed statement is not valid: {error.errors()[0]['msg']}")
    copied = _copies_differ(artifact, statement)
    if copied is not None:
        return Damaged(file, f"its '{copied}' is not the statement's")
    found = _hashed(statement, folders)
    if not isinstance(found, dict):
        return found
    why = _recomposed(artifact, statement, found, judge)
    return Verified(statement, artifact.body.signer, mark) if why is None else Contradiction(file, why)


def _copies_differ(artifact: SealArtifact, statement: Statement) -> str | None:
    """Name of the first envelope field that is not a copy of the statement's."""
    predicate = statement.predicate
    named = [(r.name, r.digest.sha256) for r in (*predicate.evidence, *predicate.policies)]
    copies: dict[str, tuple[Any, Any]] = {
        "created": (artifact.created.isoformat(), predicate.time_created),
        "tool": (
            (artifact.tool.version, artifact.tool.tree),
            (predicate.verifier.version, predicate.verifier.tree),
        ),
        "environment": (environment_digest(artifact.environment), predicate.verifier.environment),
        "inputs": ([(source.name, source.sha256) for source in artifact.inputs], named),
        "inputs.artifact_schema": ([source.artifact_schema for source in artifact.inputs], [None] * len(named)),
        "caveats": (artifact.caveats, ()),
        "schema_minor": (artifact.schema_minor, SealArtifact.model_fields["schema_minor"].default),
        "signer": (artifact.body.signer, predicate.verifier.id),
    }
    return next((name for name, (mine, theirs) in copies.items() if mine != theirs), None)


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    if Path(name).name != name:  # a signed name is a file's name, never a way out of the folder
        return None
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _hashed(statement: Statement, folders: Sequence[Path]) -> dict[str, tuple[Path, bytes]] | Missing | Changed:
    """Name -> (path, bytes) of every file that the statement names, all with the sealed digest."""
    found: dict[str, tuple[Path, bytes]] = {}
    for resource in (*statement.predicate.evidence, *statement.predicate.policies):
        path = _find(resource.name, folders)
        if path is None:
            return Missing(resource.name, tuple(map(str, folders)))
        data = path.read_bytes()
        if sha256_bytes(data) != resource.digest.sha256:
            return Changed(resource.name, str(resource.digest.sha256), sha256_bytes(data))
        found[resource.name] = (path, data)
    return found


def _recomposed(
    artifact: SealArtifact, statement: Statement, found: dict[str, tuple[Path, bytes]], judge: PairJudge
) -> str | None:
    """What is wrong with the statement in the light of its evidence: it is composed anew and compared."""
    policy = statement.predicate.policies[0].name
    try:
        thresholds = parse_thresholds(found[policy][1], policy)
        evidence = checks.assemble([load(str(found[r.name][0])) for r in statement.predicate.evidence])
        checks.check_chain(evidence)
        checks.check_clean(evidence, thresholds, artifact.tool)
        checks.check_same_system(evidence)
        checks.check_judgements(evidence, thresholds, judge)
    except SpecPilotError as error:
        return " ".join(filter(None, (error.fact, error.reason)))
    when = statement.predicate.time_created
    again = compose(evidence, thresholds, tool=artifact.tool, environment=artifact.environment, time_created=when)
    where = model_difference(again, statement, "statement")
    return None if where is None else f"the evidence gives another {where}"
