"""Validity regions and the ranking of entries by a ceiling."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.samples import ceiling_artifact, deployment

from specpilot_cli.memory.entry import Applies, Attacks, Base, Delta, Entry, EntryFolder, Range, Reproduces, Tried
from specpilot_cli.memory.region import Place, architecture, place_of, stand
from specpilot_cli.memory.select import select, worth

HERE = Place("dflash2", "qwen", ("h200-sxm", "sm90"), 8, 4096)


def item(name: str, **changes: object) -> EntryFolder:
    """An entry of the miniengine."""
    fields = {
        "schema_": "specpilot.entry/1",
        "id": name,
        "title": name,
        "kind": "engine",
        "status": "unmeasured",
        "base": Base(engine="miniengine", tree="1" * 40),
        "reproduces": Reproduces(tree="2" * 40),
        "delta": Delta(sha256="3" * 64, paths=("x",)),
    }
    return EntryFolder(Entry.model_validate({**fields, **changes}), Path("room/miniengine") / name, b"")


@pytest.mark.parametrize(
    ("region", "outside"),
    [
        ({}, ""),
        ({"drafters": ("dflash2", "dspark")}, ""),
        ({"drafters": ("dspark",)}, "drafter dflash2 is not dspark"),
        ({"targets": ("qwe*",)}, ""),
        ({"devices": ("sm90",)}, ""),
        ({"devices": ("h200-*",)}, ""),
        ({"devices": ("sm120", "cpu")}, "device h200-sxm/sm90 is not sm120 or cpu"),
        ({"requests": Range(min=8, max=8)}, ""),
        ({"requests": Range(min=9, max=16)}, "8 requests are not from 9 to 16"),
        ({"requests": Range(min=1, max=7)}, "8 requests are not from 1 to 7"),
        ({"context_tokens": Range(min=0, max=4096)}, ""),
        ({"context_tokens": Range(min=4097, max=9999)}, "contexts end at 4096 tokens"),
    ],
)
def test_a_region_and_a_place(region: dict[str, object], outside: str) -> None:
    found = stand(Applies.model_validate(region), HERE).outside
    assert (found == ()) if not outside else (len(found) == 1 and outside in found[0])


def test_what_a_region_leaves_open_is_said() -> None:
    assert len(stand(Applies(), HERE).notes) == 5
    partly = stand(Applies(context_tokens=Range(min=0, max=1024)), HERE)
    assert partly.outside == () and "off above 1024 tokens of context" in partly.notes


def test_the_architecture_of_a_gpu() -> None:
    found = [architecture(gpu) for gpu in ("h200-sxm", "h100-sxm", "cpu", "rtx-pro-6000", "l40s", "hal9000")]
    assert found == ["sm90", "sm90", "cpu", "sm120", "sm89", None]
    record = deployment().model_copy(update={"server_args": ("--context-length", "512", "--flag")})
    assert place_of(record) == Place("dflash2", "m", ("cpu", "cpu"), 1, 512)


def test_worth_is_what_the_floors_leave() -> None:
    """The sample's profile: gemm 6 ms, recurrent 2 ms; 1e9 byte/s of which 90 % count: floors of 2 ms each (1.2e6 FLOP
    at 60 % of 1e9 FLOP/s for recurrent). τ 4 of 6; step 10 ms of which 8 ms are profiled."""
    ceiling = ceiling_artifact().body
    assert worth(Attacks(factor="acceptance"), ceiling)[0] == pytest.approx(6 / 4)
    assert worth(Attacks(factor="outside"), ceiling)[0] == pytest.approx(10 / 8)
    floor_ms = {floor.name: floor.floor_ms for floor in ceiling.floors}
    assert floor_ms["gemm"] == pytest.approx(2.0)
    step_ms = sum(floor.time_ms for floor in ceiling.floors)
    only_gemm = worth(Attacks(factor="kernels", classes=("ge*",)), ceiling)[0]
    assert only_gemm == pytest.approx(step_ms / (step_ms - (6.0 - floor_ms["gemm"])))
    assert worth(Attacks(factor="kernels"), ceiling)[0] >= only_gemm
    assert worth(Attacks(factor="kernels", classes=("absent",)), ceiling)[0] == 1.0


def test_the_ranking_and_what_is_left_out() -> None:
    lost = Tried(quantity="gain", value=0.89, unit="", deployment="mini", source="evidence/pair.json")
    items = [
        item("z-out", kind="engine"),
        item("b-tree", kind="tree"),
        item("a-out", attacks=Attacks(factor="outside")),
        item("far", applies=Applies(devices=("sm90",), drafters=("dspark",))),
        item("lost", status="negative", tried=(lost,)),
        item("gone", status="retired"),
        item("other", base=Base(engine="sglang-0.5.20", tree="1" * 40)),
    ]
    taken, left = select(items, deployment(), ceiling_artifact().body)
    assert [(c.item.entry.id, round(c.worth, 3)) for c in taken] == [("b-tree", 1.5), ("a-out", 1.25), ("z-out", 1.25)]
    why = {out.item.entry.id: out.why for out in left}
    assert why["far"] == "drafter dflash2 is not dspark; device cpu/cpu is not sm90"
    assert why["lost"] == "negative: gain 0.89 on mini"
    assert (why["gone"], why["other"]) == ("retired", "it is for sglang-0.5.20")
    assert select(list(reversed(items)), deployment(), ceiling_artifact().body) == (taken, left)
