"""Sealed requests must be new to the round: no earlier artifact may have read them."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_cli.artifacts.base import Envelope
from specpilot_cli.artifacts.deployment import RequestSetRecord
from specpilot_cli.artifacts.io import Loaded
from specpilot_cli.artifacts.pair_run import PairRunArtifact
from specpilot_cli.artifacts.profile import ProfileArtifact
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.sealing.evidence import Evidence


def _read_requests(item: Loaded[Envelope]) -> RequestSetRecord | None:
    artifact = item.artifact
    return artifact.body.requests if isinstance(artifact, PairRunArtifact | ProfileArtifact) else None


def _prompts(item: Loaded[Envelope]) -> set[tuple[int, ...]]:
    artifact = item.artifact
    return {o.input_ids for o in artifact.body.outputs} if isinstance(artifact, PairRunArtifact) else set()


def _overlap(item: Loaded[Envelope], sealed: RequestSetRecord, prompts: set[tuple[int, ...]]) -> str | None:
    read = _read_requests(item)
    if read is None:
        return None
    same_file = read.sha256 == sealed.sha256 or read.name == sealed.name
    shared = sorted(set(read.ids) & set(sealed.ids)) if same_file else []
    if shared:
        return f"{len(shared)} of the sealed requests ({shared[0]}, …)"
    copied = _prompts(item) & prompts  # the same prompts under other names
    return f"{len(copied)} of the sealed prompts" if copied else None


def check_unseen(evidence: Evidence, seen: Sequence[Loaded[Envelope]]) -> None:
    """No artifact of the round read a request that the runs are sealed on.

    The runs themselves and the noise run that set their bar (stock against stock: no candidate has met it) are exempt.

    Args:
        seen: every profile and pair-run of the round; other artifacts read no requests.
    Raises:
        InputUnusable: one did.
    """
    own = {item.source.sha256 for item in evidence.files()}
    own |= {run.pair.artifact.body.noise_source or "" for run in evidence.runs}
    sealed = evidence.runs[0].pair.artifact.body.requests
    prompts = {o.input_ids for run in evidence.runs for o in run.pair.artifact.body.outputs}
    for item in seen:
        if item.source.sha256 in own:
            continue
        found = _overlap(item, sealed, prompts)
        if found is not None:
            raise InputUnusable(
                f"{item.source.name}: read {found}.",
                "What was seen in the round cannot seal its result.",
                "Seal on requests that no profile or pair-run of the round has read.",
            )
