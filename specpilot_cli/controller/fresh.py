"""Prompts that stand in no file, and what a candidate that is fast on the known ones only gives away.

A system that has read the request set ahead, or keeps answers between servers, is fast from the first visit on and may
be right token by token: neither the comparison of repeats nor token forcing sees it. It is not fast on prompts that
nobody could know. Their times never enter the gain.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specpilot_cli.artifacts.pair_run import FreshPrompt, Sample
from specpilot_cli.controller.pairs import log_ratios
from specpilot_cli.deployment import Request

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PROMPTS = 8
"""Fresh prompts of a pair-run: enough for the test below, a quarter more requests at the usual 24 to 48."""
BENCHMARK = "(fresh prompts)"
LIMIT = 0.05
"""Log ratio by which the gain on known prompts may exceed that on fresh ones: splices are a little off the text that a
drafter knows, so an honest gain may be smaller there."""
SIGNIFICANCE = 0.001


def fresh_prompts(requests: Sequence[Request], count: int) -> tuple[FreshPrompt, ...]:
    """Splices of two requests each: the front of one, the rest of another; drawn from the system's entropy.

    Ids, lengths and text are the set's, every transition but one too. At least two requests are needed, else none.
    """
    source, known = random.SystemRandom(), {r.input_ids for r in requests}
    found: dict[tuple[int, ...], FreshPrompt] = {}
    for _ in range(20 * count if len(requests) > 1 else 0):
        front, back = source.sample(list(requests), 2)
        cut = source.randint(max(1, len(front.input_ids) // 4), max(1, 3 * len(front.input_ids) // 4))
        ids = front.input_ids[:cut] + back.input_ids[cut:]
        if ids not in known and len(found) < count:
            limit = min(front.max_new_tokens, back.max_new_tokens)
            found.setdefault(ids, FreshPrompt(id=f"fresh:{len(found)}", input_ids=ids, max_new_tokens=limit))
    return tuple(found.values())


def as_requests(prompts: Sequence[FreshPrompt]) -> tuple[Request, ...]:
    """As the schedule takes them: a benchmark of their own, so that no batch mixes them with the set."""
    return tuple(
        Request(
            id=p.id, split="develop", prompt="", input_ids=p.input_ids, max_new_tokens=p.max_new_tokens,
            benchmark=BENCHMARK,
        )
        for p in prompts
    )  # fmt: skip


def _by_request(samples: Sequence[Sample]) -> NDArray[np.float64]:
    import numpy as np

    means = [ratios.log_ratio.mean(axis=1) for ratios in log_ratios(samples)]
    return np.concatenate(means) if means else np.empty(0)


def known_before(known: NDArray[np.float64], fresh: NDArray[np.float64]) -> bool:
    """Whether log gains [requests] on the set exceed those on fresh prompts [prompts] by more than `LIMIT`.

    One-sided t-test with Welch's degrees of freedom. Eight prompts can happen to be alike, which would make any
    difference significant; honest ones vary as the set's do, so their variance counts as at least the set's. With 28
    requests, 8 prompts and a standard deviation of 0.11 (the miniengine's), a gain of 1.26 that fresh prompts do not
    show at all is found in half of all runs, one of 1.5 in nearly all.
    """
    import numpy as np
    from scipy import stats

    excess = float(known.mean() - fresh.mean()) - LIMIT
    if excess <= 0:
        return False
    of_known = float(known.var(ddof=1)) / len(known)
    of_fresh = float(max(known.var(ddof=1), fresh.var(ddof=1))) / len(fresh)
    error = float(np.sqrt(of_known + of_fresh))
    if error == 0:
        return True
    freedom = error**4 / (of_known**2 / (len(known) - 1) + of_fresh**2 / (len(fresh) - 1))
    return bool(stats.t.sf(excess / error, freedom) < SIGNIFICANCE)


def fresh_problems(samples: Sequence[Sample], fresh_samples: Sequence[Sample]) -> list[str]:
    """What `known_before` says of a run; nothing where either has fewer than three requests."""
    import numpy as np

    known, fresh = _by_request(samples), _by_request(fresh_samples)
    if min(len(known), len(fresh)) < 3 or not known_before(known, fresh):
        return []
    return [
        f"the gain is {np.exp(known.mean()):.3f} on the request set and {np.exp(fresh.mean()):.3f} on fresh prompts: "
        "answers were known before"
    ]
