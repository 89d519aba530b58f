"""Each kind of question: what is run for it, and which verdict comes of what the stages say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.controller_lab import Lab

from specpilot_cli.agents.controller import runner
from specpilot_cli.agents.controller.environment import SECRET
from specpilot_cli.agents.controller.protocol import Kind, Question, Reply
from specpilot_cli.artifacts.verdict import Verdict

TREE_KINDS: tuple[Kind, ...] = ("screen", "force", "promote", "final")


def ask(lab: Lab, kind: Kind, tree: str | None = None, **more: Any) -> Reply:
    """One question to a controller that begins with what is in the folder."""
    with lab.stages(**more) as stages:
        return stages.answer(Question(kind=kind, tree=tree))


def values(start: dict[str, Any], *options: str) -> list[str]:
    """Values of a start's options."""
    argv = start["argv"]
    return [argv[argv.index(name) + 1] for name in options]


def test_noise_is_measured_once_and_kept(lab: Lab) -> None:
    with lab.stages() as stages:
        first, again = stages.answer(Question(kind="noise")), stages.answer(Question(kind="noise"))
    third = ask(lab, "noise")
    assert first.verdict is None and first.summary == {"noise": 0.01, "repeats": 1, "requests": 2}
    assert first.seconds > 0 and again.seconds == third.seconds == 0
    assert again.model_copy(update={"seconds": first.seconds}) == first
    (start,) = lab.starts()
    assert "--noise" in start["argv"] and values(start, "--requests", "--repeats", "--order") == ["28", "1", "ABBA"]


def test_a_noisy_machine_gets_the_larger_design_for_everything(lab: Lab) -> None:
    lab.plan(noise=[0.06, 0.03])
    noise, screen = ask(lab, "noise"), ask(lab, "screen", lab.tree())
    assert noise.summary["repeats"] == 2 and noise.summary["noise"] == 0.03
    assert [values(start, "--repeats") for start in lab.starts("noise")] == [["1"], ["2"]]
    (start,) = lab.starts("screen")
    assert values(start, "--repeats", "--noise-from") == ["2", "noise-r2-0.json"]
    assert screen.verdict is Verdict.PROMOTED


@pytest.mark.parametrize("bad", ["INFRA", "mute"])
def test_noise_that_fails_is_tried_again_and_is_not_the_last_word(lab: Lab, bad: str) -> None:
    lab.plan(noise=[bad] * 4 + [0.01])
    tree = lab.tree()
    first = ask(lab, "screen", tree)
    assert first.verdict is Verdict.INFRA and lab.starts("screen") == []
    assert ask(lab, "screen", tree).verdict is (Verdict.INFRA if bad == "INFRA" else Verdict.PROMOTED)
    assert ask(lab, "screen", tree).verdict is Verdict.PROMOTED
    seeds = {values(start, "--seed")[0] for start in lab.starts("noise")}
    assert len(seeds) == (5 if bad == "INFRA" else 3)


def test_profile_says_where_the_time_goes(lab: Lab) -> None:
    of_stock, of_tree = ask(lab, "profile"), ask(lab, "profile", lab.tree())
    assert of_stock.verdict is None and of_stock.summary["classes_ms"] == {"verify/gemm": 6.0, "verify/recurrent": 2.0}
    assert of_stock.summary["step_ms"] == 10.0 and of_stock.summary["phases_ms"] == {"draft": 2.0, "verify": 7.0}
    assert [start["trees"] for start in lab.starts("profile")] == [[lab.base], [lab.tree()]]
    assert of_tree.artifacts[0][0] == lab.starts("profile")[1]["name"]


@pytest.mark.parametrize("verdict", ["PROMOTED", "NO_EFFECT", "NOT_COMPARABLE"])
def test_a_screen_has_the_verdict_of_its_pair_run(lab: Lab, verdict: str) -> None:
    lab.plan(screen=[verdict])
    reply = ask(lab, "screen", lab.tree())
    assert reply.verdict is Verdict(verdict) and reply.reason == f"the figures say {verdict}"
    assert reply.figures is not None and (reply.figures.ratio, reply.figures.bar) == (1.2, 0.03)
    assert (reply.figures.tau_stock, reply.figures.tau_candidate) == (2.0, 3.0)
    (start,) = lab.starts("screen")
    assert values(start, "--split", "--requests", "--starts") == ["develop", "10", "1"]
    assert [name for name, _ in reply.artifacts] == [start["name"], "noise-r1-0.json"]


def test_what_may_vary_is_passed_on_in_one_order(lab: Lab) -> None:
    tree = lab.tree()
    with lab.stages(server_args=("--both",)) as stages:
        one = stages.answer(Question(kind="screen", tree=tree, vary=("b", "a"), flags=("--fast=1",)))
        two = stages.answer(Question(kind="screen", tree=tree, vary=("a", "b", "a"), flags=("--fast=1",)))
    assert one.model_copy(update={"seconds": 0.0}) == two
    (start,) = lab.starts("screen")
    assert [word for word in start["argv"] if word.startswith(("--vary", "--candidate"))] == [
        "--vary=a", "--vary=b", "--candidate-flag=--fast=1",
    ]  # fmt: skip
    assert start["argv"][-2:] == ["--", "--both"]


@pytest.mark.parametrize("second", ["PROMOTED", "NO_EFFECT", "UNDERPOWERED"])
def test_underpowered_is_measured_once_more_with_twice_the_repeats(lab: Lab, second: str) -> None:
    lab.plan(screen=["UNDERPOWERED", second])
    assert ask(lab, "screen", lab.tree()).verdict is Verdict(second)
    assert [values(start, "--repeats", "--noise-from") for start in lab.starts("screen")] == [
        ["1", "noise-r1-0.json"], ["2", "noise-r2-0.json"],
    ]  # fmt: skip


def test_underpowered_stands_where_the_noise_of_twice_the_repeats_cannot_be_had(lab: Lab) -> None:
    lab.plan(screen=["UNDERPOWERED"], noise=[0.01, "INFRA"])
    assert ask(lab, "screen", lab.tree()).verdict is Verdict.UNDERPOWERED
    assert len(lab.starts("screen")) == 1


@pytest.mark.parametrize("second", ["PROMOTED", "INFRA"])
def test_infra_is_measured_once_more_with_another_seed(lab: Lab, second: str) -> None:
    lab.plan(promote=["INFRA", second])
    assert ask(lab, "promote", lab.tree()).verdict is Verdict(second)
    assert [values(start, "--repeats", "--seed") for start in lab.starts("promote")] == [["1", "0"], ["1", "1000"]]
    assert len(lab.starts("forced")) == (second == "PROMOTED")


PROMOTE = [
    # pair-run, outputs changed, forcing, verdict, whether it was forced
    ("PROMOTED", 0, "LOSSLESS", "PROMOTED", True),
    ("PROMOTED", 2, "LOSSY", "LOSSY", True),
    ("PROMOTED", 2, "UNDERPOWERED", "UNDERPOWERED", True),
    ("NO_EFFECT", 0, "LOSSY", "NO_EFFECT", False),
    ("NO_EFFECT", 2, "LOSSY", "LOSSY", True),
    ("NO_EFFECT", 2, "UNDERPOWERED", "NO_EFFECT", True),
    ("UNDERPOWERED", 2, "LOSSY", "LOSSY", True),
    ("NOT_COMPARABLE", 2, "LOSSY", "NOT_COMPARABLE", False),
]


@pytest.mark.parametrize(("speed", "changed", "tokens", "verdict", "is_forced"), PROMOTE)
def test_promote_needs_speed_and_losslessness(
    lab: Lab, speed: str, changed: int, tokens: str, verdict: str, is_forced: bool
) -> None:
    lab.plan(promote=[{"do": speed, "changed": changed}], forced=[tokens])
    reply = ask(lab, "promote", lab.tree())
    assert reply.verdict is Verdict(verdict)
    assert len(lab.starts("promote")) == 1, "LOSSY, and too few tokens, are no reason to measure again"
    assert len(lab.starts("forced")) == is_forced
    assert reply.mismatch_rate == (0.01 if is_forced else None)
    assert ("too few tokens" in reply.reason) == (is_forced and tokens == "UNDERPOWERED")
    assert values(lab.starts("promote")[0], "--split", "--requests") == ["develop", "28"]
    assert len(reply.artifacts) == 2 + is_forced


def test_forcing_that_dies_for_good_is_infra(lab: Lab) -> None:
    lab.plan(forced=["die"])
    reply = ask(lab, "promote", lab.tree())
    assert reply.verdict is Verdict.INFRA and "words of the engine" in reply.reason
    assert len(lab.starts("promote")) == 2 and len(lab.starts("forced")) == 2 * (1 + runner.RESUMES)


def test_final_is_two_sealed_runs_their_forcing_and_the_seal(lab: Lab) -> None:
    tree = lab.tree()
    for kind in TREE_KINDS[:3]:
        ask(lab, kind, tree)
    ask(lab, "profile")
    reply = ask(lab, "final", tree)
    assert reply.verdict is Verdict.PROMOTED and reply.mismatch_rate == 0.01
    runs, (sealed,) = lab.starts("final"), lab.starts("seal")
    assert [values(start, "--split", "--seed") for start in runs] == [["sealed", "1"], ["sealed", "2"]]
    names = [name for name, _ in reply.artifacts]
    evidence = sealed["argv"][2 : sealed["argv"].index("--seen")]
    assert set(names) == {*evidence, sealed["name"]} and len(evidence) == 5 and "noise-r1-0.json" in evidence
    seen = {sealed["argv"][at + 1] for at, word in enumerate(sealed["argv"]) if word == "--seen"}
    wanted = {start["name"] for role in ("profile", "screen", "promote") for start in lab.starts(role)}
    assert seen == wanted and len(wanted) == 3


@pytest.mark.parametrize(
    ("plan", "verdict", "starts"),
    [
        ({"final": ["NO_EFFECT"]}, "NO_EFFECT", 1),
        ({"final": ["PROMOTED", "NO_EFFECT"]}, "NO_EFFECT", 2),
        ({"forced": ["LOSSLESS", "LOSSY"]}, "LOSSY", 2),
        ({"final": ["PROMOTED", "UNDERPOWERED", "PROMOTED"]}, "PROMOTED", 4),
        ({"final": ["INFRA", "PROMOTED", "PROMOTED"]}, "PROMOTED", 3),
        ({"seal": ["refuse"]}, "INFRA", 2),
    ],
)
def test_final_promotes_nothing_that_is_not_sealed(
    lab: Lab, plan: dict[str, list[Any]], verdict: str, starts: int
) -> None:
    lab.plan(**plan)
    reply = ask(lab, "final", lab.tree())
    assert reply.verdict is Verdict(verdict) and len(lab.starts("final")) == starts
    assert len(lab.starts("seal")) == (verdict == "PROMOTED" or "seal" in plan)


@pytest.mark.parametrize(
    "plan",
    [
        {"final": [{"do": "NOT_COMPARABLE", "reason": "words of the engine"}]},
        {"final": [{"do": "INFRA", "reason": "words of the engine"}]},
        {"final": ["mute"]},
        {"final": ["die"]},
        {"forced": ["die"]},
        {"seal": ["refuse"]},
    ],
)
def test_no_word_of_an_engine_that_saw_sealed_prompts_gets_out(lab: Lab, plan: dict[str, list[Any]]) -> None:
    lab.plan(**plan)
    said: list[str] = []
    with lab.stages() as stages:
        reply = stages.answer(Question(kind="final", tree=lab.tree()), said.append)
    assert reply.verdict in (Verdict.INFRA, Verdict.NOT_COMPARABLE)
    assert "words of the engine" not in reply.model_dump_json() + "".join(said)


def test_force_takes_the_outputs_of_the_last_screen(lab: Lab) -> None:
    tree = lab.tree()
    lab.plan(forced=["LOSSY"])
    with lab.stages() as stages:
        stages.answer(Question(kind="screen", tree=tree, vary=("a",)))
        last = stages.answer(Question(kind="screen", tree=tree, vary=("b",)))
        reply = stages.answer(Question(kind="force", tree=tree))
    assert reply.verdict is Verdict.LOSSY and reply.mismatch_rate == 0.01
    assert lab.starts("forced")[0]["argv"][1] == last.artifacts[0][0]
    assert len(lab.starts("screen")) == 2


def test_force_measures_a_screen_where_there_is_none(lab: Lab) -> None:
    tree = lab.tree()
    forced, screened = ask(lab, "force", tree), ask(lab, "screen", tree)
    assert forced.verdict is Verdict.LOSSLESS and screened.verdict is Verdict.PROMOTED
    assert screened.seconds == 0 and len(lab.starts("screen")) == 1


def test_force_without_outputs_says_why(lab: Lab) -> None:
    lab.plan(screen=["NOT_COMPARABLE"])
    reply = ask(lab, "force", lab.tree())
    assert reply.verdict is Verdict.NOT_COMPARABLE and "the figures say NOT_COMPARABLE" in reply.reason
    assert lab.starts("forced") == []


@pytest.mark.parametrize("death", ["signal", "die", "bug"])
def test_a_stage_that_dies_goes_on_from_what_it_had(lab: Lab, death: str) -> None:
    lab.plan(promote=[death, death, "PROMOTED"], forced=[death, "LOSSLESS"])
    reply = ask(lab, "promote", lab.tree())
    assert reply.verdict is Verdict.PROMOTED
    assert [start["resumed"] for start in lab.starts("promote")] == [False, True, True]
    assert [start["resumed"] for start in lab.starts("forced")] == [False, True]
    written = json.loads((lab.folder / lab.starts("promote")[0]["name"]).read_bytes())
    assert len(written["body"]["samples"]) == 6, "each start added its two"


def test_a_stage_is_resumed_at_most_twice_and_the_question_tried_once_more(lab: Lab) -> None:
    lab.plan(screen=["die"])
    reply = ask(lab, "screen", lab.tree())
    assert reply.verdict is Verdict.INFRA
    assert [start["resumed"] for start in lab.starts("screen")] == [False, True, True] * 2
    assert ask(lab, "screen", lab.tree()) == reply.model_copy(update={"seconds": 0.0}), "the verdict stands"
    assert len(lab.starts("screen")) == 6


def test_an_engine_that_does_not_come_up_is_not_tried_for_long(lab: Lab) -> None:
    lab.plan(screen=["mute"])
    reply = ask(lab, "screen", lab.tree())
    assert reply.verdict is Verdict.INFRA and len(lab.starts("screen")) == 2
    assert "ended with code 1 before it was ready" in reply.reason and "words of the engine" in reply.reason


def test_a_stage_that_refuses_to_go_on_begins_again(lab: Lab) -> None:
    lab.plan(screen=["signal", "refuse", "PROMOTED"])
    assert ask(lab, "screen", lab.tree()).verdict is Verdict.PROMOTED
    assert [start["resumed"] for start in lab.starts("screen")] == [False, True, False]


def test_a_stage_that_never_ends_is_killed(lab: Lab) -> None:
    lab.plan(screen=["hang"])
    reply = ask(lab, "screen", lab.tree(), stage_limit_s=2.0)
    assert reply.verdict is Verdict.INFRA and "2 s" in reply.reason
    (start,) = lab.starts("screen")
    assert not Path(f"/proc/{start['pid']}").exists()


@pytest.mark.parametrize("damage", [b"{}", b"", b'{"schema": "specpilot.pair-run/1"'])
def test_a_damaged_artifact_of_a_killed_stage_is_put_aside(lab: Lab, damage: bytes) -> None:
    lab.folder.mkdir()
    (lab.folder / "noise-r1-0.json").write_bytes(damage)
    assert ask(lab, "noise").verdict is None
    assert (lab.folder / "noise-r1-0.json.damaged").read_bytes() == damage


def test_evidence_that_was_changed_is_noticed(lab: Lab) -> None:
    tree = lab.tree()
    ask(lab, "noise")
    noise = lab.folder / "noise-r1-0.json"
    true = noise.read_bytes()
    noise.write_bytes(true.replace(b'"noise": 0.01', b'"noise": 0.001'))
    reply = ask(lab, "screen", tree)
    assert reply.verdict is Verdict.INFRA and "noise-r1-0.json: was changed" in reply.reason
    noise.write_bytes(true)
    assert ask(lab, "screen", tree).verdict is Verdict.PROMOTED, "what is no verdict is not kept"


def test_the_time_of_an_answer_is_that_of_its_stages(lab: Lab) -> None:
    with lab.stages() as stages:
        replies = [stages.answer(Question(kind=kind, tree=lab.tree())) for kind in TREE_KINDS]
        total = stages.runner.gpu_seconds()
    assert sum(reply.seconds for reply in replies) == pytest.approx(total)
    with lab.stages() as stages:
        assert stages.runner.gpu_seconds() == pytest.approx(total)


def test_no_secret_reaches_a_stage(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = ["ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL", "CUDA_KEY", "TORCH_TOKEN", "SPECPILOT_SECRET", "LC_PASSWORD"]
    for name in (*secrets, "GITHUB_TOKEN", "HF_TOKEN", "SSH_AUTH_SOCK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "x")
    ask(lab, "final", lab.tree(), environment={"NCCL_DEBUG": "WARN", "MY_API_KEY": "x"})
    roles = {start["role"] for start in lab.starts()}
    assert roles == {"noise", "final", "forced", "seal"}
    for start in lab.starts():
        assert [name for name in start["environment"] if SECRET.search(name)] == []
        assert {"PATH", "HOME", "SPECPILOT_CACHE", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG"} <= set(start["environment"])
        assert "SSH_AUTH_SOCK" not in start["environment"]
