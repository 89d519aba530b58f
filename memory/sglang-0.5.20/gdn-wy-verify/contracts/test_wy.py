"""All paths at once: within a derived bound and one BF16 unit of the walk; the launch of the CUDA kernel."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

HERE = Path(__file__).resolve().parent
OTHER = HERE.parents[1] / "gdn-commit" / "contracts"
sys.path[:0] = [str(OTHER), str(HERE.parents[3] / "kernels" / "_testing")]
import rooms  # noqa: E402

rows_of, native, switch = rooms.part("rows"), rooms.part("native"), rooms.part("switch")


def test_outputs_are_within_one_unit_of_the_walk() -> None:
    """30 kinds of cases and some of a second size, in Triton's interpreter; the same bits again in a second run."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-W", "ignore", str(HERE / "wy_routes.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    label, _, said = done.stdout.strip().partition("{")
    found = json.loads("{" + said)
    assert label.strip() == "wy: wy triton" and found["numbers"] == 22176
    assert found["sure"] > 19000 and 22000 < found["equal"] < found["numbers"], "all equal: the walk itself ran"
    assert not found["wrong"] and not found["other bits again"] and not found["units above one"]


def test_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    for commit, tree, word, says in (
        ("triton", "path", "fast", "SGLANG_GDN_WY is one of"),
        ("triton", "off", "cuda", "SGLANG_GDN_WY=cuda needs SGLANG_GDN_TREE"),
    ):
        for name, value in (("COMMIT", commit), ("TREE", tree), ("WY", word)):
            monkeypatch.setenv(f"SGLANG_GDN_{name}", value)
        with pytest.raises(ValueError, match=says):
            switch.wy_variant()
    monkeypatch.delenv("SGLANG_GDN_WY")
    assert switch.wy_variant() == "off"


def test_the_kernel_is_the_one_that_was_the_fastest() -> None:
    """Of those that start early and `cuda`, by the medians in the results of `kernels/gdn_tree`."""
    body = json.loads((HERE.parents[3] / "kernels/gdn_tree/results/h200-2026-11-30-native.json").read_text())
    for size in body["timings"]:
        times = {
            name.removeprefix("verify "): us for name, us in size["median_us"].items() if name.startswith("verify")
        }
        shape = native.shape_of(size["requests"], size["rows"], 3)
        chosen = times["cuda" if shape == 0 else f"read {shape} early"]
        others = [us for name, us in times.items() if name == "cuda" or name.endswith("early")]
        assert chosen == min(others), (size["requests"], size["rows"])
    assert native.shape_of(1, 32, 2) == 1064


@pytest.mark.parametrize("value_heads", [2, 6])
def test_the_read_launch_says_what_the_kernels_own_caller_says(value_heads: int) -> None:
    """The CUDA source on a CPU (`emulate.hpp`): the same outputs of every layer, whoever describes the problem."""
    from mount import mount

    mount()
    from specpilot_kernels.gdn_tree import native as own
    from specpilot_kernels.gdn_tree import op
    from specpilot_kernels.gdn_tree.reference import Inputs

    if shutil.which(own.command(own.HOST, 16)[0]) is None:
        pytest.skip("needs a C++ compiler")
    torch.manual_seed(0)
    sizes = rows_of.Sizes(2, 3, 17, 2, value_heads, 16, 32)
    kept = rows_of.StepRows(sizes, "cuda", "cpu")
    kept.a_log, kept.dt_bias = torch.randn(2, value_heads), torch.randn(2, value_heads).bfloat16()
    for tensor in (kept.mixed, kept.a, kept.b):
        tensor.normal_()
    state, slots = torch.randn(2, 6, value_heads, 32, 16), torch.tensor([4, -1], dtype=torch.int32)
    parents = torch.tensor([[-1, *(i // 2 for i in range(16))], [-1, *range(13), 4, 4, 15]])
    words = op.ancestors(parents)
    calls, shapes = own.functions(own.HOST, 16, more=True), []
    module = SimpleNamespace(
        read=lambda problem, shape, early, stream: (
            shapes.append((shape, early)) or calls.gdn_tree_read(problem, shape, early, stream)
        )
    )
    launch = native.Read(kept, state, module)
    for place in range(2):
        found = torch.zeros(2, 17, value_heads, 32, dtype=torch.bfloat16)
        launch(place, slots, words, found)
        given = kept.layer(place, 2, 17)
        q, k, v = given.mixed.split([32, 32, value_heads * 32], -1)
        gates = (given.a.view(2, 17, -1), given.b.view(2, 17, -1), kept.a_log[place], kept.dt_bias[place])
        x = Inputs(q.view(2, 17, 2, 16), k.view(2, 17, 2, 16), v.view(2, 17, value_heads, 32), *gates)
        expected = own.verify(x, state[place], slots, words, 16**-0.5, shape=shapes[-1][0])
        assert torch.equal(found, expected) and found.float().abs().max() > 0
    assert set(shapes) == {(3016 if value_heads == 6 else 1064, 1)}
    assert all(own.SHAPES[shape] in (1, 3) for shape in (1064, 3016))
