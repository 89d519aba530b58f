"""The in-toto Statement v1 of checked evidence. Equal evidence gives equal bytes, but for the time."""

from __future__ import annotations

from collections.abc import Sequence

from specpilot_cli.artifacts.base import Environment, Tool
from specpilot_cli.artifacts.seal import Digests, Resource, SealedProperty, SealPredicate, Statement, Verifier
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.forcing.thresholds import Thresholds
from specpilot_cli.sealing.evidence import Evidence, Run
from specpilot_cli.sealing.sign import PRINCIPAL

GAIN, FORCED = "SPECPILOT_PAIRED_GAIN", "SPECPILOT_TOKEN_FORCED"


def environment_digest(environment: Environment) -> str:
    """sha256 over the environment's JSON, fields in the model's order."""
    return sha256_bytes(environment.model_dump_json().encode())


def _file(name: str, sha256: str) -> Resource:
    return Resource(name=name, digest=Digests(sha256=sha256))


def _gain(runs: Sequence[Run]) -> SealedProperty:
    values: dict[str, float | int | str] = {}
    for number, run in enumerate(runs, start=1):
        body = run.pair.artifact.body
        assert body.gain is not None and body.bar is not None and body.noise is not None
        values |= {
            f"run{number}_gain": body.gain.ratio,
            f"run{number}_gain_low": body.gain.low,
            f"run{number}_gain_high": body.gain.high,
            f"run{number}_bar": 1 + body.bar,
            f"run{number}_noise": body.noise,
            f"run{number}_outputs_changed": body.outputs_changed,
            f"run{number}_stock_output_tokens_per_s": body.summary["stock"].output_tokens_per_s,
            f"run{number}_candidate_output_tokens_per_s": body.summary["candidate"].output_tokens_per_s,
        }
    return SealedProperty(name=GAIN, values=values)


def _forced(runs: Sequence[Run]) -> SealedProperty:
    values: dict[str, float | int | str] = {}
    for number, run in enumerate(runs, start=1):
        body = run.forced.artifact.body
        assert body.rate_rule is not None and body.event_rule is not None
        values |= {
            f"run{number}_tokens": body.sides["candidate"].tokens,
            f"run{number}_mismatch_rate": body.sides["candidate"].rate,
            f"run{number}_stock_mismatch_rate": body.sides["stock"].rate,
            f"run{number}_rate_difference_high": body.rate_rule.high,
            f"run{number}_unexplained_events": body.event_rule.candidate_events,
            f"run{number}_stock_unexplained_events": body.event_rule.stock_events,
            f"run{number}_delta_nats": body.delta_nats,
        }
        if body.power is not None and body.power.wrong_token_rate is not None:
            values[f"run{number}_detectable_wrong_token_rate"] = body.power.wrong_token_rate
    return SealedProperty(name=FORCED, values=values)


def compose(
    evidence: Evidence, thresholds: Thresholds, *, tool: Tool, environment: Environment, time_created: str
) -> Statement:
    """The statement that checked evidence supports."""
    pair = evidence.runs[0].pair.artifact.body
    predicate = SealPredicate(
        verifier=Verifier(
            id=PRINCIPAL, version=tool.version, tree=tool.tree, environment=environment_digest(environment)
        ),
        time_created=time_created,
        deployment=_file(pair.deployment.id, pair.deployment.file_sha256),
        request_set=_file(pair.requests.name, pair.requests.sha256),
        base_tree=pair.stock.base_tree,
        policies=(_file(thresholds.source.name, thresholds.source.sha256),),
        thresholds=thresholds.as_dict(),
        properties=(_gain(evidence.runs), _forced(evidence.runs)),
        evidence=tuple(_file(item.source.name, item.source.sha256) for item in evidence.files()),
    )
    subject = Resource(name=pair.deployment.engine, digest=Digests(git_tree=pair.candidate.tree))
    return Statement(subject=(subject,), predicate=predicate)


def to_json(statement: Statement) -> str:
    """The bytes that are signed: compact, absent digests left out."""
    return statement.model_dump_json(by_alias=True, exclude_none=True)
