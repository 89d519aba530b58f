"""The cost model against figures worked out by hand."""

from __future__ import annotations

import pytest
from support.samples import profile_body

from specpilot_cli.artifacts.ceiling import FloorSettings
from specpilot_cli.artifacts.deployment import DevicePeaks
from specpilot_cli.artifacts.profile import Acceptance, KernelClass
from specpilot_cli.core.errors import UsageFault
from specpilot_cli.costmodel.ceiling import compute
from specpilot_cli.costmodel.floor import floor_ms

H100 = DevicePeaks(
    id="h100", peak_flop_per_s=989.4e12, peak_bytes_per_s=3.35e12, measured_bytes_per_s=None, source="data sheet"
)


def test_floor_is_the_larger_of_the_two_times() -> None:
    # 44.67 GB of weights at 90 % of 3.35 TB/s: 14.816 ms (paper section 3.2 with the weights of section 4.1)
    time, bound = floor_ms(0.0, 44.67e9, H100, FloorSettings())
    assert (round(time, 3), bound) == (14.816, "bytes")
    # the same weights at 512 rows: 2 FLOP a parameter and row, 2 bytes a parameter; 60 % of 989.4 TFLOP/s
    time, bound = floor_ms(44.67e9 * 512, 44.67e9, H100, FloorSettings())
    assert (round(time, 2), bound) == (38.53, "flop")


def test_ceiling_is_the_product_of_three_factors() -> None:
    body, doubts = compute(profile_body(), FloorSettings())
    # gemm: 1.8 MB at 0.9 GB/s = 2 ms, bytes; recurrent: 1.2 MFLOP at 0.6 GFLOP/s = 2 ms, flop
    assert [(f.name, round(f.floor_ms, 9), f.bound) for f in body.floors] == [
        ("gemm", 2.0, "bytes"),
        ("recurrent", 2.0, "flop"),
    ]
    assert body.factors.acceptance == pytest.approx(6 / 4)
    assert body.factors.kernels == pytest.approx(8 / 4)
    assert body.factors.outside == pytest.approx(10 / 8)
    assert body.ceiling == pytest.approx(1.5 * 2 * 1.25)
    assert body.target == "kernels"
    assert body.ceiling_over_ar == pytest.approx(2.0 * body.ceiling)
    assert doubts == ()


def test_a_class_without_work_promises_nothing() -> None:
    unknown = KernelClass(phase="verify", name="other", time_ms=8.0, calls=1, flop=0, bytes=0)
    body, _ = compute(profile_body(classes=(unknown,)), FloorSettings())
    assert body.floors[0].bound == "unknown"
    assert body.factors.kernels == 1.0


def test_a_class_faster_than_its_floor_is_a_caveat() -> None:
    quick = KernelClass(phase="verify", name="gemm", time_ms=1.0, calls=1, flop=0, bytes=1.8e6)
    _, doubts = compute(profile_body(classes=(quick,)), FloorSettings())
    assert doubts == ("verify/gemm took 1 ms, less than its floor of 2 ms",)


BARE = Acceptance(tau=4.0, verify_steps=1, correct_drafts=3, completion_tokens=4, position_rate=(), oracle_tau=None)


def test_without_an_oracle_the_other_factors_stand_and_the_missing_one_is_named() -> None:
    body, doubts = compute(profile_body(acceptance=BARE), FloorSettings())
    assert not body.acceptance_known
    assert (body.factors.acceptance, body.best_tau, body.target) == (1.0, 4.0, "kernels")
    assert body.ceiling == pytest.approx(2 * 1.25)  # kernels × outside
    assert "no lattices" in body.best_tau_source
    assert len(doubts) == 1 and "--best-tau" in doubts[0]
    assert any("acceptance factor is missing" in line for line in body.advice)


def test_a_best_tau_as_a_number_is_a_caveat() -> None:
    body, doubts = compute(profile_body(acceptance=BARE), FloorSettings(), best_tau=10.0)
    assert body.acceptance_known and body.factors.acceptance == pytest.approx(10 / 4)
    assert body.target == "acceptance"
    assert doubts == ("the best τ of 10 was given, not measured",)
    body, _ = compute(profile_body(), FloorSettings(), best_tau=8.0)  # also in place of a profile's own oracle
    assert body.best_tau == 8.0 and body.factors.acceptance == pytest.approx(2.0)
    with pytest.raises(UsageFault, match=r"below the profile's 4\.000"):
        compute(profile_body(acceptance=BARE), FloorSettings(), best_tau=3.9)
