"""`specpilot.seal/1`: a signed in-toto Statement v1 inside the usual envelope.

The signature covers the statement's bytes (`statement_json`), not the envelope, so that nothing has to be
re-serialised to verify it (in-toto envelope spec: do not depend on canonicalisation).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Envelope, GitTree, Record, Sha256, Source

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://specpilot.dev/attestation/seal/v1"] = "https://specpilot.dev/attestation/seal/v1"


class Digests(Record):
    """in-toto DigestSet, the two algorithms used here."""

    sha256: Sha256 | None = None
    git_tree: GitTree | None = Field(default=None, alias="gitTree")


class Subject(Record):
    """What is sealed: an engine tree."""

    name: str
    digest: Digests


class SealedProperty(Record):
    """A property that was verified, with the figures it rests on (in-toto SVR's `properties`)."""

    name: str
    values: dict[str, float | int | str]


class SealPredicate(Record):
    """Who verified what, by which rules, from which files."""

    deployment_id: str
    deployment_sha256: Sha256
    verifier: str
    verifier_tree: Sha256
    time_created: str
    thresholds: dict[str, float]
    thresholds_sha256: Sha256
    properties: tuple[SealedProperty, ...]
    evidence: tuple[Source, ...]


class Statement(Record):
    """in-toto Statement v1."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1)]
    predicate_type: Literal["https://specpilot.dev/attestation/seal/v1"] = Field(
        default=PREDICATE_TYPE, alias="predicateType"
    )
    predicate: SealPredicate


class SealBody(Record):
    """The statement's exact bytes, and the signature over them."""

    statement_json: str
    signature: str
    """`ssh-keygen -Y sign` output (PEM armour), namespace `specpilot-seal`."""
    signer: str
    public_key: str


class SealArtifact(Envelope):
    """This tree, on this deployment, gains this much and is lossless."""

    schema_: Literal["specpilot.seal/1"] = Field(default="specpilot.seal/1", alias="schema")
    body: SealBody
