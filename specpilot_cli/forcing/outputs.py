"""The outputs of a pair-run, as the scorer takes them: one entry per distinct output of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specpilot_cli.artifacts.pair_run import Arm, Output, PairRunBody
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable

ARMS: tuple[Arm, Arm] = ("candidate", "stock")
Outputs = dict[str, dict[Arm, dict[str, Output]]]
"""Request id -> arm -> digest of the output -> output."""


@dataclass(frozen=True)
class ToForce:
    """One output, and the arms that gave it."""

    request_id: str
    arms: tuple[Arm, ...]
    sha256: str
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    shared_tokens: int
    """Leading tokens that an output of the other arm has too."""
    other_length: int
    """Length of the other arm's longest output of the same request; 0 where both arms gave this one."""


def output_digest(ids: Iterable[int]) -> str:
    """sha256 over the ids in decimal, separated by commas, as in `Sample.output_sha256`."""
    return sha256_bytes(",".join(map(str, ids)).encode())


def by_request(body: PairRunBody) -> Outputs:
    """All outputs, checked: each arm answered every request, and both arms were given the same prompt.

    Raises:
        InputUnusable: an output is missing, double or unasked, or the prompts differ or are empty.
    """
    asked = (*body.requests.ids, *(prompt.id for prompt in body.fresh))
    found: Outputs = {name: {arm: {} for arm in ARMS} for name in asked}
    for output in body.outputs:
        arms, digest = found.get(output.request_id), output_digest(output.output_ids)
        if arms is None or digest in arms[output.arm]:
            raise InputUnusable(f"The pair-run has an unexpected output: {output.arm}, request {output.request_id}.")
        arms[output.arm][digest] = output
    for name, arms in found.items():
        missing = [arm for arm in ARMS if not arms[arm]]
        if missing:
            raise InputUnusable(f"The pair-run has no output of {missing[0]} for request {name}.")
        prompts = {output.input_ids for outputs in arms.values() for output in outputs.values()}
        if len(prompts) != 1 or () in prompts:
            raise InputUnusable(f"Request {name}: the arms were given different prompts, or an empty one.")
    return found


def outputs_to_force(body: PairRunBody) -> list[ToForce]:
    """Every distinct output in request order, candidate's first; outputs that both arms gave appear once."""
    wanted = []
    for name, arms in by_request(body).items():
        for digest, output in {**arms["candidate"], **arms["stock"]}.items():
            givers = tuple(arm for arm in ARMS if digest in arms[arm])
            ids, other = output.output_ids, arms["stock" if givers == ("candidate",) else "candidate"]
            both = len(givers) == 2
            shared = len(ids) if both else max(_common(ids, theirs.output_ids) for theirs in other.values())
            longest = 0 if both else max(len(theirs.output_ids) for theirs in other.values())
            wanted.append(ToForce(name, givers, digest, output.input_ids, ids, shared, longest))
    return wanted


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    differs = (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)
    return next(differs, min(len(left), len(right)))


def unforced_samples(body: PairRunBody) -> dict[Arm, int]:
    """Timed outputs of each arm that the pair-run has no tokens of (only their digest): they cannot be forced."""
    known = {name: {d for arm in ARMS for d in arms[arm]} for name, arms in by_request(body).items()}
    count: dict[Arm, int] = defaultdict(int, dict.fromkeys(ARMS, 0))
    for sample in (*body.samples, *body.fresh_samples):
        count[sample.arm] += sample.output_sha256 not in known.get(sample.request_id, ())
    return dict(count)
