"""The outputs of a pair-run, as the scorer takes them: one entry per distinct output of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specpilot_cli.artifacts.pair_run import Arm, Output, PairRunBody
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable

ARMS: tuple[Arm, Arm] = ("candidate", "stock")


@dataclass(frozen=True)
class ToForce:
    """One output, and the arms that gave it."""

    request_id: str
    arms: tuple[Arm, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    other_length: int
    """Length of the other arm's output of the same request."""

    @property
    def sha256(self) -> str:
        """Digest of prompt and output."""
        return sha256_bytes(repr((self.input_ids, self.output_ids)).encode())


def by_arm(body: PairRunBody) -> dict[Arm, dict[str, Output]]:
    """Arm -> request id -> output, checked: each arm answered every request once, and to the same prompt.

    Raises:
        InputUnusable: an output is missing, double or unasked, or the arms had different prompts.
    """
    found: dict[Arm, dict[str, Output]] = {arm: {} for arm in ARMS}
    for output in body.outputs:
        if output.request_id in found[output.arm] or output.request_id not in body.requests.ids:
            raise InputUnusable(f"The pair-run has an unexpected output: {output.arm}, request {output.request_id}.")
        found[output.arm][output.request_id] = output
    for arm in ARMS:
        missing = [name for name in body.requests.ids if name not in found[arm]]
        if missing:
            raise InputUnusable(f"The pair-run lacks {len(missing)} outputs of {arm}.", f"The first: {missing[0]}.")
    for name in body.requests.ids:
        if found["candidate"][name].input_ids != found["stock"][name].input_ids:
            raise InputUnusable(f"Request {name}: the arms were given different prompts.")
        if not found["stock"][name].input_ids:
            raise InputUnusable(f"Request {name}: the prompt is empty.")
    return found


def outputs_to_force(body: PairRunBody) -> list[ToForce]:
    """Every distinct output in request order; outputs that both arms share appear once."""
    arms, wanted = by_arm(body), []
    for name in body.requests.ids:
        candidate, stock = arms["candidate"][name], arms["stock"][name]
        if candidate.output_ids == stock.output_ids:
            wanted.append(_entry(candidate, stock, ARMS))
        else:
            wanted += [_entry(candidate, stock, ("candidate",)), _entry(stock, candidate, ("stock",))]
    return wanted


def _entry(mine: Output, other: Output, arms: Sequence[Arm]) -> ToForce:
    return ToForce(mine.request_id, tuple(arms), mine.input_ids, mine.output_ids, len(other.output_ids))
