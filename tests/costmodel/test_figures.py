"""The public reports, answered from their own figures. Every number is derived by hand beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specpilot_cli.artifacts.figures import FiguresBody, ReportFile, RowsFigures, RunFigures
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.core.paths import share_dir
from specpilot_cli.costmodel.blocks import blocks, certain
from specpilot_cli.costmodel.figures import answer, run_answer
from specpilot_cli.costmodel.report_file import load_report


def report(name: str) -> FiguresBody:
    return answer(load_report(name)[0])


def test_the_mixture_of_experts_needs_an_accept_length_of_three() -> None:
    body = report("sglang-29244")
    moe, dense = body.runs
    assert moe.speedup == pytest.approx(93 / 146)  # 0.637
    assert moe.step_ms == pytest.approx(21.505, abs=1e-3)  # 2.0 tokens / 93 tokens/s
    assert moe.ar_ms == pytest.approx(6.849, abs=1e-3)  # 1 / 146
    assert moe.relative_cost == pytest.approx(3.1398, abs=1e-4)  # 21.505 / 6.849 = 2.0 · 146 / 93: breaks even there
    assert moe.break_even_step_ms == pytest.approx(13.699, abs=1e-3)  # 2.0 · 6.849
    assert dense.relative_cost == pytest.approx(1.5210, abs=1e-4)  # 2.8 · 88 / 162
    found = body.comparison
    assert found is not None and (found.slower, found.faster) == ("Qwen3-30B-A3B", "Qwen3-8B")
    assert found.cost_ratio == pytest.approx(2.064, abs=1e-3)  # 3.1398 / 1.5210
    assert found.tau_ratio == pytest.approx(1.4)  # 2.8 / 2.0
    assert found.at_faster_cost == pytest.approx(1.315, abs=1e-3)  # 2.0 / 1.5210: it would gain
    assert found.at_faster_tau == pytest.approx(0.892, abs=1e-3)  # 2.8 / 3.1398: it would still lose
    assert "breaks even at τ = 3.14" in body.advice[0] and "13.70 ms" in body.advice[0]
    assert body.advice[-1].endswith("the step is what to attack")


def test_the_part_of_qwq_that_does_not_scale() -> None:
    body = report("sglang-6949")
    one, four = body.runs
    assert (one.speedup, four.speedup) == (pytest.approx(30 / 21), pytest.approx(59 / 61))
    assert one.relative_cost is None and one.tau is None  # no accept length, so no c
    found = body.scaling
    assert found is not None
    # AR: s + f = 1000/21 = 47.619 ms, s/4 + f = 1000/61 = 16.393 ms → s = 31.226 · 4/3 = 41.634, f = 5.985
    assert found.ar_scaling_ms == pytest.approx(41.634, abs=2e-3)
    assert found.ar_fixed_ms == pytest.approx(5.985, abs=2e-3)
    # speculation, a token: s + f = 1000/30 = 33.333, s/4 + f = 1000/59 = 16.949 → s = 16.384 · 4/3 = 21.846, f = 11.488
    assert found.spec_scaling_ms == pytest.approx(21.846, abs=2e-3)
    assert found.spec_fixed_ms == pytest.approx(11.488, abs=2e-3)
    assert found.ar_fixed_share == pytest.approx(0.365, abs=1e-3)  # 5.985 / 16.393
    assert found.spec_fixed_share == pytest.approx(0.678, abs=1e-3)  # 11.488 / 16.949
    assert found.break_even_fixed_ms == pytest.approx(10.932, abs=2e-3)  # 16.393 - 21.846/4
    assert found.speedup_at_ar_fixed == pytest.approx(1.432, abs=1e-3)  # 16.393 / (5.461 + 5.985)
    assert found.residual == 0
    assert len(body.assumptions) == 2
    assert any("68 % of speculation's" in line for line in body.advice)


def test_a_fixed_time_a_block_is_time_outside() -> None:
    body = report("llamacpp-25908")
    (run,) = body.runs
    assert run.step_ms == 32 and run.largest == "outside"
    assert run.factors == {"outside": pytest.approx(32 / 12)}  # 2.67
    assert run.tau == pytest.approx(5.293, abs=1e-3)  # 165.4 tokens/s · 32 ms
    (line,) = body.advice
    assert "20 of 32 ms" in line
    assert "floors under 4.5 ms" in line  # 12 / 2.667: kernels would be the larger factor only below
    assert "at most 1.70× with 8 drafts" in line  # 9 / 5.293 < 2.67: acceptance cannot be the larger


def test_nine_rows_fall_off_the_kernel() -> None:
    body = report("llamacpp-mmvq-8-rows")
    assert body.rows is not None
    worst = max(body.rows.cliffs, key=lambda cliff: cliff.growth)
    assert (worst.last_rows, worst.first_rows) == (8, 9)
    assert worst.after_ms == pytest.approx(112.2, abs=0.1)  # 111.97, 112.10, 112.66
    seven = body.rows.blocks[-1]
    assert (seven.drafts, seven.rows) == (7, 8)
    assert seven.gain_at_most == pytest.approx(1.2507, abs=1e-4)  # 111.97 / 49.75 - 1
    assert seven.gain_at_least == pytest.approx(1.0006, abs=1e-4)  # 8/9 · 2.2507 - 1
    assert dict(body.rows.break_even)[9] == pytest.approx(3.882, abs=1e-3)  # 111.97 / 28.84
    assert dict(body.rows.break_even)[8] == pytest.approx(1.725, abs=1e-3)  # 49.75 / 28.84
    assert any("7 drafts instead of 8 are 100.1 to 125.1 % faster" in line for line in body.advice)


def test_the_recurrent_kernel_of_eight_rows() -> None:
    body = report("vllm-gdn-8-rows")
    assert body.rows is not None and body.rows.break_even == ()  # one row was not measured
    (cliff,) = body.rows.cliffs
    assert (cliff.last_rows, cliff.first_rows) == (8, 9)
    assert cliff.after_ms - cliff.before_ms == pytest.approx(7, abs=0.5)  # the report's own reading: +7 ms
    (seven,) = body.rows.blocks
    assert seven.gain_at_most == pytest.approx(0.1301, abs=1e-4)  # 60.8 / 53.8 - 1
    assert seven.gain_at_least == pytest.approx(0.0045, abs=1e-4)  # 8/9 · 1.1301 - 1


def test_every_shipped_report_is_answered() -> None:
    names = sorted(path.stem for path in (share_dir("profiles") / "reports").glob("*.toml"))
    assert len(names) >= 5
    for name in names:
        body = report(name)
        assert body.advice, name
        assert all(address.startswith("https://") for address in body.report.source)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16), st.data())
def test_the_bound_on_fewer_drafts_holds_for_every_drafter(raw: list[float], data: st.DataObject) -> None:
    """τ(j)/τ(k) of falling position rates lies between the bounds that `blocks` uses, for times that do not matter."""
    rates = sorted(raw, reverse=True)
    k = len(rates)
    j = data.draw(st.integers(1, k - 1))
    table = RowsFigures(what="step", rows=(j + 1, k + 1), ms=(1.0, 1.0), drafts=k)
    (block,) = blocks(table)
    true = (1 + sum(rates[:j])) / (1 + sum(rates)) - 1
    assert block.gain_at_least - 1e-12 <= true <= block.gain_at_most + 1e-12


def test_the_rest_of_the_step_dilutes_a_cliff() -> None:
    table = RowsFigures(what="verify", rows=(8, 9), ms=(10.0, 20.0), drafts=8, rest_ms=70.0)
    (block,) = blocks(table)
    assert block.gain_at_most == pytest.approx(90 / 80 - 1)
    assert block.gain_at_least == pytest.approx(8 / 9 * 90 / 80 - 1)  # 0: not certain
    assert certain(blocks(table)) is None


def test_figures_that_contradict_each_other_are_named() -> None:
    run = RunFigures(label="x", spec_tokens_per_s=100, accept_length=2.0, profiled_ms=20, outside_ms=20)
    body = answer(ReportFile(id="x", title="x", source=("https://x",), runs=(run,)))
    assert any("speed × step gives τ = 4.00" in line for line in body.advice)


def test_all_three_factors_where_all_are_given() -> None:
    found = run_answer(
        RunFigures(
            label="x", ar_tokens_per_s=100, spec_tokens_per_s=100, accept_length=2.0, best_accept_length=6.0,
            profiled_ms=16, outside_ms=4, floor_ms=8,
        )
    )  # fmt: skip
    assert found.factors == {"acceptance": 3.0, "kernels": 2.0, "outside": 1.25}
    assert found.largest == "acceptance" and found.relative_cost == pytest.approx(2.0)


def test_speeds_that_scale_better_than_the_devices_fit_nothing() -> None:
    runs = tuple(
        RunFigures(label=str(n), devices=n, ar_tokens_per_s=v, spec_tokens_per_s=v) for n, v in ((1, 10), (2, 30))
    )
    body = answer(ReportFile(id="x", title="x", source=("https://x",), runs=runs))
    assert body.scaling is not None and body.scaling.ar_fixed_ms < 0
    assert any("do not fit" in line for line in body.advice)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('id = "r"\ntitle = "t"\nsource = ["s"]\n', "no figures"),
        ('id = "other"\ntitle = "t"\nsource = ["s"]\n', "its id is 'other'"),
        ('id = "r"\ntitle = "t"\nsource = []\n', "source"),
        ('id = "r"\ntitle = "t"\nsource = ["s"]\n[table]\nwhat = "step"\nrows = [2, 1]\nms = [1, 1]\n', "rise"),
        ('id = "r"\ntitle = "t"\nsource = ["s"]\n[table]\nwhat = "step"\nrows = [1]\nms = [1, 1]\n', "one length"),
        ('id = "r"\ntitle = "t"\nsource = ["s"]\n[[runs]]\nlabel = "x"\naccept_length = 0.5\n', "accept_length"),
    ],
)
def test_unusable_files(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "r.toml"
    path.write_text(text)
    with pytest.raises(InputUnusable) as caught:
        load_report(str(path))
    assert said in str(caught.value)


def test_an_unknown_report_names_the_known_ones() -> None:
    with pytest.raises(UsageFault, match="no report 'nope'") as caught:
        load_report("nope")
    assert "sglang-29244" in str(caught.value)
