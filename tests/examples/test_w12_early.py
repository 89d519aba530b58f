"""What early.py of examples/w12-linear computes, with servers that are made up."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "w12-linear"


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delitem(sys.modules, "compare", raising=False)  # other examples have one of their own
    module = importlib.import_module("early")
    yield module  # type: ignore[misc]
    for name in ("early", "compare"):
        sys.modules.pop(name, None)


class Server:
    """A call takes 30 ms and so many a step and request; says who was asked."""

    def __init__(self, name: str, step_s: float, log: list[str]) -> None:
        self.name, self.step_s, self.log = name, step_s, log

    def generate(self, ids: list[Any], tokens: int, *, ignore_eos: bool) -> list[Any]:
        assert ignore_eos
        self.log.append(f"{self.name} {len(ids)}")
        return [SimpleNamespace(wall_s=0.030 + tokens * self.step_s * len(ids))] * len(ids)


def test_arms_are_taken_in_turn_and_a_gain_is_of_one_round(early: ModuleType) -> None:
    log: list[str] = []
    servers = {name: Server(name, s, log) for name, s in (("stock", 0.006), ("w12", 0.005), ("w12+early", 0.004))}
    asked = [SimpleNamespace(input_ids=(n,)) for n in range(8)]
    found = early.sampled(servers, asked, (1, 8), 5)
    assert list(found) == list(servers)
    assert {len(found[name][count]) for name in servers for count in (1, 8)} == {5}
    assert found["w12"][8][0] == pytest.approx(40.0)
    gains = early.gains(found)
    assert gains["w12"][1] == pytest.approx([1.2] * 3) and gains["w12+early"][8] == pytest.approx([1.5] * 3)
    calls = log[12:][::2]  # behind the warm-up, two calls a sample
    for at in range(0, len(calls), 3):
        assert sorted(c.split()[0] for c in calls[at : at + 3]) == sorted(servers), "every arm once a round and size"
    assert len({tuple(calls[at : at + 3]) for at in range(0, len(calls), 6)}) > 1, "the order is drawn anew"
    uneven = {"stock": {1: [6.0, 6.0, 9.0]}, "w12": {1: [5.0, 4.0, 6.0]}}
    assert early.gains(uneven) == {"w12": {1: [1.5, 1.2, 1.5]}}


def test_only_the_third_arm_releases_early(early: ModuleType) -> None:
    flags = ("--model-path", "M", "--speculative-algorithm", "DFLASH")
    arms = {name: (tree, given) for name, tree, given in early.arms_of(early.ARMS, Path("s"), Path("p"), flags)}
    assert [tree.name for tree, _ in arms.values()] == ["s", "p", "p"]
    assert all("--speculative-algorithm" not in given for _, given in arms.values())
    switched = {name for name, (_, given) in arms.items() if "@env:SGLANG_EARLY_RELEASE=256" in given}
    packed = {name for name, (_, given) in arms.items() if "w12" in given}
    assert [name for name, _, _ in early.arms_of(["w12+early"], Path("s"), Path("p"), flags)] == ["stock", "w12+early"]
    more = early.arms_of([], Path("s"), Path("p"), flags, ["hand=/t/x=y", "head=/t:SGLANG_A=1:SGLANG_B=2"])
    assert [(name, str(tree)) for name, tree, _ in more] == [("stock", "s"), ("hand", "/t/x=y"), ("head", "/t")]
    assert more[1][2] == arms["w12+early"][1]
    assert more[2][2] == ("@env:SGLANG_A=1", "@env:SGLANG_B=2", *arms["w12+early"][1])
    assert switched == {"w12+early"} and packed == {"w12", "w12+early"}


def test_it_waits_for_what_still_uses_the_gpu(early: ModuleType, tmp_path: Path, capsys: Any) -> None:
    (there := tmp_path / "there").touch()
    early.wait_for([there], 5.0)
    assert capsys.readouterr().out == ""
    early.wait_for([there, tmp_path / "never"], 0.0)
    assert "never not there; what is measured now may be disturbed" in capsys.readouterr().out
