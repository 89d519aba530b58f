"""The replay stage on small recordings: walks, counts, folds, curves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.replay_lattices import recording, write

from specpilot_cli.artifacts.replay import Curve
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.replay.accept import NEVER, oracle_lengths, places, reach
from specpilot_cli.replay.builders.best_first import best_first
from specpilot_cli.replay.builders.chain import chain
from specpilot_cli.replay.builders.registry import NAMES
from specpilot_cli.replay.run import Options
from specpilot_cli.replay.stage import run
from specpilot_cli.replay.steps import Steps, join

EVERYTHING = Options(builders=NAMES, nodes=(1, 2, 3, 5, 9), resamples=200)


def lengths(steps: Steps, nodes: int) -> np.ndarray:
    """Accepted drafts of best-first trees, step by step, by following the target's tokens through listed trees."""
    trees, found = best_first(steps, nodes), []
    for s in range(len(steps)):
        at, accepted = -1, 0
        for wanted in steps.continuation[s, :-1].tolist():
            following = [
                slot for slot in range(nodes)
                if trees.parents[s, slot] == at and trees.depths[s, slot] and trees.tokens[s, slot] == wanted
            ]  # fmt: skip
            if not following:
                break
            at, accepted = following[0], accepted + 1
        found.append(accepted)
    return np.array(found, dtype=np.int32)


@pytest.mark.parametrize("nodes", [1, 4, 12])
def test_acceptance_is_the_walk_along_the_targets_tokens(nodes: int) -> None:
    steps = recording(6, 3)
    found = reach(best_first(steps, 12), steps.continuation)
    assert (found <= nodes).sum(1).tolist() == lengths(steps, nodes).tolist()
    assert ((found != NEVER).sum(1) <= oracle_lengths(steps)).all()


def test_the_oracle_stops_at_the_first_token_that_is_no_candidate() -> None:
    steps = recording(3, 4)
    for s in range(len(steps)):
        hits = [t in c for t, c in zip(steps.continuation[s].tolist(), steps.ids[s].tolist(), strict=False)]
        assert oracle_lengths(steps)[s] == [*hits, False].index(False)


def own_steps(tokens: int, accepted: list[int]) -> list[int]:
    at, visited = 0, []
    while at < tokens:
        visited.append(at)
        at += accepted[at] + 1
    return visited


def test_an_own_walk_jumps_over_what_it_accepted() -> None:
    steps = recording(4, 5)
    accepted = lengths(steps, 6)
    spots = places(steps)
    assert spots.dense()
    visited = spots.own_walk(accepted)
    for request in range(4):
        mine = steps.request == request
        assert np.flatnonzero(visited[mine]).tolist() == own_steps(12, accepted[mine].tolist())


def engine_run(steps: Steps) -> Steps:
    """The recording with the engine's own acceptance: a chain over all positions."""
    accepted = (reach(chain(steps, steps.positions), steps.continuation) != NEVER).sum(1).astype(np.int32)
    visited = places(steps).own_walk(accepted)
    bonus = steps.continuation[np.arange(len(steps)), accepted]
    return replace(steps, accepted=np.where(visited, accepted, -1), bonus=np.where(visited, bonus, -1))


def curve_of(curves: tuple[Curve, ...], builder: str, positions: int = 3) -> Curve:
    (found,) = [c for c in curves if c.builder == builder and c.positions == positions]
    return found


def test_a_whole_replay(tmp_path: Path) -> None:
    blocks = [engine_run(recording(3, seed, prefix=f"s{seed}-")) for seed in (1, 2, 3)]
    write(tmp_path / "l", *blocks)
    whole = join(blocks)
    result = run([str(tmp_path / "l")], replace(EVERYTHING, positions=(2, 3), batch=4), None)
    body = result.body
    assert body.lattices[0].chain_equals_engine is True
    assert body.lattices[0].engine_steps == int((whole.accepted >= 0).sum())
    assert {(c.builder, c.positions) for c in body.curves} == {(n, p) for n in NAMES for p in (2, 3)}
    for nodes in (1, 2, 3, 5, 9):
        accepted = lengths(whole, nodes)
        visited = places(whole).own_walk(accepted)
        (point,) = [p for p in curve_of(body.curves, "best-first").points if p.nodes == nodes]
        assert point.tau == pytest.approx(1 + accepted[visited].mean())
        assert point.steps == visited.sum() and point.low <= point.tau <= point.high
        assert point.accepted_per_node == pytest.approx(accepted[visited].sum() / (point.nodes_used * point.steps))
        assert point.engine_steps_tau == pytest.approx(1 + accepted[whole.accepted >= 0].mean())
        assert point.position_rate[0] == pytest.approx((accepted[visited] >= 1).mean())
    stock = curve_of(body.curves, "chain").points[-1]
    assert stock.tau == pytest.approx(body.lattices[0].engine_tau)
    assert curve_of(body.curves, "sequoia").fitted and not curve_of(body.curves, "chain").fitted
    assert curve_of(body.curves, "chain", 2).cut_from == 3 and curve_of(body.curves, "chain").cut_from is None
    assert {s.budget for s in body.shared} == {4 * n for n in (1, 2, 3)}  # 5 and 9 are not among the listed budgets
    again = run([str(tmp_path / "l")], replace(EVERYTHING, positions=(2, 3), batch=4), None).body
    timeless = [c.model_copy(update={"tree_us": 0}) for c in body.curves]
    assert [c.model_copy(update={"tree_us": 0}) for c in again.curves] == timeless


def test_shards_do_not_change_a_replay(tmp_path: Path) -> None:
    parts = [engine_run(recording(2, seed, prefix=f"s{seed}-")) for seed in (1, 2)]
    write(tmp_path / "two", *parts)
    write(tmp_path / "one", join(parts))
    options = replace(EVERYTHING, builders=("best-first", "oracle", "opt-tree"))
    two, one = (run([str(tmp_path / name)], options, None).body.curves for name in ("two", "one"))
    for a, b in zip(two, one, strict=True):
        assert a.points == b.points


def test_recorded_steps_where_a_recording_has_gaps(tmp_path: Path) -> None:
    whole = recording(4, 9)
    some = whole.take(np.flatnonzero(whole.offset % 3 == 0))
    write(tmp_path / "l", some, dense=False)
    body = run([str(tmp_path / "l")], replace(EVERYTHING, builders=("best-first",), nodes=(5,)), None).body
    assert body.curves[0].walk == "recorded steps" and body.lattices[0].chain_equals_engine is None
    assert body.curves[0].points[0].tau == pytest.approx(1 + lengths(some, 5).mean())


def test_what_cannot_be_replayed(tmp_path: Path) -> None:
    steps = recording(1, 1)
    write(tmp_path / "l", steps)
    with pytest.raises(UsageFault, match="records 3 positions, not 8"):
        run([str(tmp_path / "l")], replace(EVERYTHING, positions=(8,)), None)
    unknown = replace(steps, continuation=np.full_like(steps.continuation, -1))
    write(tmp_path / "u", unknown)
    with pytest.raises(InputUnusable, match="no step has a known continuation"):
        run([str(tmp_path / "u")], EVERYTHING, None)


def test_folds_share_no_request() -> None:
    from specpilot_cli.replay.collect import _training

    blocks = [engine_run(recording(5, seed)) for seed in (1, 2)]
    first, second = _training(iter(blocks))
    names = [{steps.texts[i].tokens.tobytes() for i in np.unique(steps.request)} for steps in (first, second)]
    assert names[0] and names[1] and not names[0] & names[1]
    assert (first.accepted >= 0).all() and (second.accepted >= 0).all()
