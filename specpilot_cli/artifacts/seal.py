"""`specpilot.seal/1`: a signed in-toto Statement v1 inside the usual envelope.

The signature covers the statement's bytes (`statement_json`), not the envelope, so that nothing has to be
re-serialised to verify it (in-toto envelope spec: do not depend on canonicalisation). Every other field of the file is
a copy of something in the statement, and `seal verify` compares the copies.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from specpilot_cli.artifacts.base import Envelope, GitTree, Record, Sha256

STATEMENT_TYPE: Literal["https://in-toto.io/Statement/v1"] = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Literal["https://specpilot.dev/attestation/seal/v1"] = "https://specpilot.dev/attestation/seal/v1"


class Digests(Record):
    """in-toto DigestSet, the two algorithms used here."""

    sha256: Sha256 | None = None
    git_tree: GitTree | None = Field(default=None, alias="gitTree")


class Resource(Record):
    """in-toto ResourceDescriptor: a file, or (as a subject) an engine tree."""

    name: str
    digest: Digests


class SealedProperty(Record):
    """A property that was verified, with the figures it rests on (in-toto SVR's `properties`)."""

    name: str
    values: dict[str, float | int | str]


class Verifier(Record):
    """in-toto SVR's `verifier`: which SpecPilot, under which key's name."""

    id: str
    """Principal of the signing key."""
    version: str
    tree: Sha256
    environment: Sha256
    """Digest of the envelope's `environment`."""


class SealPredicate(Record):
    """Who verified what, by which rules, from which files (names as in in-toto SVR v0.2 where it has them)."""

    verifier: Verifier
    time_created: str = Field(alias="timeCreated")
    deployment: Resource
    request_set: Resource = Field(alias="requestSet")
    base_tree: GitTree = Field(alias="baseTree")
    policies: Annotated[tuple[Resource, ...], Field(min_length=1)]
    """The thresholds file."""
    thresholds: dict[str, float]
    properties: Annotated[tuple[SealedProperty, ...], Field(min_length=1)]
    evidence: Annotated[tuple[Resource, ...], Field(min_length=1)]


class Statement(Record):
    """in-toto Statement v1."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(default=STATEMENT_TYPE, alias="_type")
    subject: Annotated[tuple[Resource, ...], Field(min_length=1)]
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
    """Principal in `allowed_signers`."""
    public_key: str
    """Key type and base64, without a comment."""


class SealArtifact(Envelope):
    """This tree, on this deployment, gains this much and is lossless."""

    schema_: Literal["specpilot.seal/1"] = Field(default="specpilot.seal/1", alias="schema")
    body: SealBody
