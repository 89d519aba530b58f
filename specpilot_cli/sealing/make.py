"""Check the evidence, compose the statement, sign it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specpilot_cli.artifacts.base import Envelope, Source, envelope_fields
from specpilot_cli.artifacts.io import Loaded
from specpilot_cli.artifacts.seal import SealArtifact, SealBody
from specpilot_cli.forcing.thresholds import Thresholds
from specpilot_cli.sealing import evidence as checks
from specpilot_cli.sealing.evidence import Evidence, PairJudge
from specpilot_cli.sealing.seen import check_unseen
from specpilot_cli.sealing.sign import PRINCIPAL, public_key, sign
from specpilot_cli.sealing.statement import compose, to_json


def checked(
    given: Sequence[Loaded[Envelope]], seen: Sequence[Loaded[Envelope]], thresholds: Thresholds, judge: PairJudge
) -> Evidence:
    """Evidence that may be sealed now, by this SpecPilot.

    Raises:
        InputUnusable: it may not (exit 3). NegativeEvidence: a verdict says no (exit 1).
    """
    from specpilot_cli.artifacts.base import this_tool

    evidence = checks.assemble(given)
    checks.check_chain(evidence)
    checks.check_clean(evidence, thresholds, this_tool())
    checks.check_same_system(evidence)
    check_unseen(evidence, seen)
    checks.check_judgements(evidence, thresholds, judge)
    return evidence


def seal(evidence: Evidence, thresholds: Thresholds, key: Path) -> SealArtifact:
    """The signed artifact.

    Args:
        evidence: from `checked`. key: private key, readable by its owner only.
    """
    inputs = (*(item.source for item in evidence.files()), thresholds.source)
    fields = envelope_fields(inputs=tuple(Source(name=s.name, sha256=s.sha256) for s in inputs))
    statement = to_json(
        compose(
            evidence,
            thresholds,
            tool=fields["tool"],
            environment=fields["environment"],
            time_created=fields["created"].isoformat(),
        )
    )
    body = SealBody(
        statement_json=statement,
        signature=sign(statement.encode(), key),
        signer=PRINCIPAL,
        public_key=public_key(key),
    )
    return SealArtifact(**fields, body=body)
