"""The `cuda` variant on a CPU: its own source in `emulate.hpp`, against float64 and against its promised order."""

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specpilot_kernels.gdn_tree import cases, native, native_cases, op, reference  # noqa: E402

needs_compiler = pytest.mark.skipif(
    shutil.which(native.command(native.HOST, 128)[0]) is None, reason="needs a C++ compiler"
)
CPU = torch.device("cpu")


@pytest.fixture
def order() -> Iterator[ctypes.CDLL]:
    """The library for K = 128, whose order of threads the test may turn."""
    calls = native.functions(native.HOST, 128)
    yield calls
    calls.gdn_tree_order(0)


@needs_compiler
def test_within_the_bound_on_every_tree_and_width(capsys: pytest.CaptureFixture[str]) -> None:
    assert native_cases.main("cpu", more=False) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert ", 0 wrong" in said and int(said.split()[0]) >= 100


@needs_compiler
@pytest.mark.parametrize("rows", [9, 33])
@pytest.mark.parametrize("values", ["plain", "same-keys"])
def test_other_shapes_are_within_the_bound(rows: int, values: str) -> None:
    """Of one width; `test_every_shape_everywhere` has the rest."""
    size: native_cases.Size = (2, rows, (1, 3), (32, 32))
    case = native_cases.step_of(size, "random", values, rows, "cpu", 1).layers[0]
    found = native_cases.verify_shares(case, native_cases.shapes_of(case))
    assert len(found) == 1 + len(native.SHAPES) and max(found.values()) <= 1, found


@needs_compiler
@pytest.mark.slow
def test_every_shape_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert native_cases.main("cpu", more=True) == 0, capsys.readouterr().out
    assert int(capsys.readouterr().out.split()[0]) >= 300


@pytest.mark.gpu
def test_on_the_device() -> None:
    """In a process of its own, since others here import Triton for its interpreter."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("native_cases.py")), "cuda"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@needs_compiler
def test_the_order_of_threads_changes_no_bit(order: ctypes.CDLL) -> None:
    """What a missing barrier would break: backwards, with a stride, warp by warp, to the same bits."""
    step = native_cases.step_of((2, 37, (1, 2), (128, 64)), "random", "plain", 3, "cpu", 2)
    case = step.layers[0]
    path, lengths = cases.drawn_path(case, 4)
    found = []
    for turn in range(5):
        order.gdn_tree_order(turn)
        state = step.state.clone()
        native.commit_layers(step.x, state, case.slots, path, lengths)
        found.append((native.verify(case.x, case.state, case.slots, op.ancestors(case.parents), case.scale), state))
    assert all(torch.equal(out, found[0][0]) and torch.equal(state, found[0][1]) for out, state in found[1:])


@needs_compiler
@pytest.mark.parametrize("shape", native.SHAPES)
def test_the_order_of_threads_changes_no_bit_of_other_shapes(shape: int) -> None:
    calls = native.functions(native.HOST, 32, more=True)
    case = native_cases.step_of((1, 33, (1, 3), (32, 64)), "random", "plain", 3, "cpu", 1).layers[0]
    found = []
    for turn in range(5):
        calls.gdn_tree_order(turn)
        tree = op.ancestors(case.parents)
        found.append(native.verify(case.x, case.state, case.slots, tree, case.scale, shape=shape))
    calls.gdn_tree_order(0)
    assert all(torch.equal(out, found[0]) for out in found[1:]) and found[0].abs().sum() > 0


def fused(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """x y + z rounded once (but for ties of the sum in float64, which the fixed numbers below do not meet)."""
    return (x.double() * y.double() + z.double()).float()


def halves(leaves: torch.Tensor) -> torch.Tensor:
    """Sum over the last dimension: places half its size apart, then a quarter, down to neighbours."""
    while leaves.shape[-1] > 1:
        low, high = leaves.chunk(2, -1)
        leaves = low + high
    return leaves[..., 0]


def fours(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The leaves of a sum of products over K: four neighbours, the second first and alone."""
    x, y = (t.unflatten(-1, (-1, 4)) for t in torch.broadcast_tensors(x, y))
    found = fused(x[..., 0], y[..., 0], x[..., 1] * y[..., 1])
    return fused(x[..., 3], y[..., 3], fused(x[..., 2], y[..., 2], found))


def walked(case: cases.Case, rows: list[int], calls: ctypes.CDLL) -> torch.Tensor:
    """`[HV, V, K]` float32: the state of request 0 after `rows`, in the order of `triton_path._step` as compiled."""
    x, groups = case.x, case.x.v.shape[2] // case.x.k.shape[2]
    state = case.state[int(case.slots[0])].clone()
    for row in rows:
        for head in range(len(state)):
            key = x.k[0, row, head // groups].float()
            key = key / (halves(fours(key, key)) + reference.EPSILON).sqrt()
            decay, beta = ctypes.c_float(), ctypes.c_float()
            raw = (float(t) for t in (x.a[0, row, head], x.b[0, row, head], x.a_log[head], x.dt_bias[head]))
            calls.gdn_tree_gates(*map(ctypes.c_float, raw), ctypes.byref(decay), ctypes.byref(beta))
            h = state[head] * decay.value
            u = (x.v[0, row, head].float() - halves(fours(key, h))) * beta.value
            state[head] = fused(key, u[:, None], h)
    return state


@needs_compiler
def test_commit_has_the_bits_of_the_engines_order(order: ctypes.CDLL) -> None:
    """Lanes hold other columns than in the engine's kernel, every sum is added in its order. A changed order shows."""
    step = native_cases.step_of((1, 12, (1, 2), (128, 128)), "chain", "plain", 1, "cpu", 1)
    case, state = step.layers[0], step.state.clone()
    path, lengths = torch.arange(12)[None], torch.tensor([11], dtype=torch.int32)
    native.commit_layers(step.x, state, case.slots, path, lengths)
    expected = walked(case, list(range(11)), order)
    assert torch.equal(state[0, int(case.slots[0])], expected)
    one_after_the_other = reference.commit(case.x.to(torch.float32), case.before.float(), path, lengths)[0].mT
    assert not torch.equal(expected, one_after_the_other)


def test_the_order_is_that_of_rows_at_multiples_of_sixteen() -> None:
    """`commit.cuh` has the first of the two orders that Triton gives `path`: the one for the engine's rows.

    In a process of its own, since others here import Triton for its interpreter.
    """
    pytest.importorskip("triton")
    argv = [sys.executable, str(Path(__file__).with_name("compiled.py")), "orders"]
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["even", "rows:", "4", "odd", "rows:", "1"]


@needs_compiler
def test_gates_against_float64() -> None:
    """Softplus and its linear part, within the roundings of six float32 operations."""
    calls = native.functions(native.HOST, 128)
    drawn = [(0.5, -1.0, -1.0, 0.25), (-9.0, 3.0, 1.0, -2.0), (30.0, 0.0, -3.0, 1.0), (19.9, 8.0, 0.0, 0.0)]
    for a, b, a_log, bias in drawn:
        decay, beta = ctypes.c_float(), ctypes.c_float()
        calls.gdn_tree_gates(*map(ctypes.c_float, (a, b, a_log, bias)), ctypes.byref(decay), ctypes.byref(beta))
        soft = torch.nn.functional.softplus(torch.tensor(a + bias, dtype=torch.float64), threshold=20.0)
        g = -torch.tensor(a_log, dtype=torch.float64).exp() * soft
        # 1 + e^x carries half a unit of 2^-23 absolutely into the logarithm, beside relative roundings
        allowed = 2.0**-23 * (8 * g.abs() + torch.tensor(a_log).exp() + 4)
        assert abs(float(g.exp()) - decay.value) <= float(allowed * g.exp())
        assert abs(float(torch.sigmoid(torch.tensor(b, dtype=torch.float64))) - beta.value) <= 8 * 2.0**-24


@needs_compiler
def test_a_negative_zero_loses_its_sign() -> None:
    """As in the engine's kernel, which adds what it loads to zeros: keys of zeros would keep it otherwise."""
    step = native_cases.step_of((1, 3, (1, 1), (16, 16)), "chain", "plain", 0, "cpu", 1)
    x = replace(step.x, k=torch.zeros_like(step.x.k), v=-torch.ones_like(step.x.v))
    state = torch.full_like(step.state, -0.0)
    slots, path = torch.tensor([1], dtype=torch.int32), torch.arange(3)[None]
    native.commit_layers(x, state, slots, path, torch.tensor([2], dtype=torch.int32))
    assert not state[0, 1].signbit().any() and state[0, 0].signbit().all()


@needs_compiler
def test_a_wrong_path_is_far_outside_the_bound() -> None:
    """The check can fail: one step less than was accepted, and a sibling's row."""
    step = native_cases.step_of((1, 9, (1, 1), (32, 32)), "chain", "plain", 2, "cpu", 1)
    case = step.layers[0]
    path, lengths = torch.arange(9)[None], torch.tensor([6], dtype=torch.int32)
    for other_path, other_lengths in ((path, lengths - 1), (torch.tensor([[0, 1, 2, 3, 4, 6, 0, 0, 0]]), lengths)):
        state = case.state.clone()
        native.commit(case.x, state, case.slots, other_path, other_lengths)
        assert cases.commit_share(case, path, lengths, state) > 1000


@needs_compiler
def test_nothing_is_committed_without_a_slot_or_a_row() -> None:
    step = native_cases.step_of((3, 5, (1, 1), (16, 16)), "chain", "plain", 0, "cpu", 2)
    slots, state = torch.tensor([0, -1, 2], dtype=torch.int32), step.state.clone()
    native.commit_layers(step.x, state, slots, torch.arange(5).repeat(3, 1), torch.tensor([0, 5, 3], dtype=torch.int32))
    changed = (state != step.state).flatten(2).any(-1)
    assert changed.tolist() == [[False, False, True, *[False] * (state.shape[1] - 3)]] * 2


@needs_compiler
def test_all_layers_at_once_are_the_layers_one_by_one() -> None:
    """Through the public calls, and with a bias in float32."""
    step = native_cases.step_of((2, 7, (1, 2), (64, 32)), "pairs", "plain", 1, "cpu", 3)
    x = replace(step.x, dt_bias=step.x.dt_bias.float())
    slots = step.layers[0].slots
    path, lengths = cases.drawn_path(step.layers[0], 8)
    together, single = step.state.clone(), step.state.clone()
    op.commit_layers(x, together, slots, path, lengths, "cuda")
    for layer, own in enumerate(single):
        op.commit(step.x.layer(layer), own, slots, path, lengths, "cuda")
    assert torch.equal(together, single) and not torch.equal(together, step.state)


@needs_compiler
def test_what_it_does_not_take_is_refused() -> None:
    step = native_cases.step_of((1, 4, (1, 1), (32, 32)), "chain", "plain", 0, "cpu", 2)
    case = step.layers[0]
    tree = op.ancestors(case.parents)
    with pytest.raises(ValueError, match="takes bfloat16"):
        op.verify(case.x.to(torch.float32), case.state, case.slots, tree, 1.0, "cuda")
    with pytest.raises(ValueError, match="states of 1"):
        op.commit_layers(step.x, step.state[:1], case.slots, tree, tree[:, 0], "cuda")
    assert not native.can_run(CPU, 256) and native.can_run(CPU, 32)


def test_every_form_of_the_commit_finds_its_place() -> None:
    """What `bench_commit.py` changes is in the source; a change that is not is refused."""
    pytest.importorskip("triton")
    from specpilot_kernels.gdn_tree import bench_commit

    forms = bench_commit.FORMS
    sources = {name: bench_commit.source_of(form) for name, form in forms.items()}
    assert len({(sources[name], form.ahead) for name, form in forms.items()}) == len(forms)
    source = Path(bench_commit.__file__).with_name("commit.cuh").read_text(encoding="utf-8")
    first, *_ = forms
    assert sources[first] == source and forms[first].ahead
    for text, behind in ((source, True), (sources["ahead at the start"], False)):
        assert (text.index(bench_commit.ASK) > text.index("  fill<K>(p, room")) == behind
    with pytest.raises(ValueError, match="has 0 times"):
        bench_commit.source_of(bench_commit.Form((("no such line", ""),)))


@pytest.mark.gpu
def test_a_graphs_warm_up_waits_for_its_inputs() -> None:
    """They are written 0.1 s late on the current stream; the warm-up alone runs before the graph is replayed."""
    pytest.importorskip("triton")
    from specpilot_kernels.gdn_tree import bench

    given, seen = (torch.zeros(4, device="cuda") for _ in range(2))
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)
    given.fill_(1)
    bench.graph_of([lambda: seen.copy_(given)])
    assert seen.tolist() == [1, 1, 1, 1]


def test_a_graphs_warm_up_is_ordered_behind_the_current_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same without a GPU: what is asked of streams, in its order."""
    pytest.importorskip("triton")
    from specpilot_kernels.gdn_tree import bench

    said: list[str] = []

    class Stream:
        def wait_stream(self, other: str) -> None:
            said.append(f"waits for {other}")

    cuda = bench.torch.cuda
    monkeypatch.setattr(cuda, "Stream", Stream)
    monkeypatch.setattr(cuda, "current_stream", lambda: "the current stream")
    monkeypatch.setattr(cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(cuda, "synchronize", lambda: said.append("everything is done"))
    monkeypatch.setattr(cuda, "CUDAGraph", lambda: "graph")
    monkeypatch.setattr(cuda, "graph", lambda graph: nullcontext())
    assert bench.graph_of([lambda: said.append("call")]) == "graph"
    assert said == ["waits for the current stream", "call", "everything is done", "call"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(native.command("90a", 128)[0]) is None, reason="needs nvcc")
def test_the_form_with_all_changes_compiles(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from specpilot_kernels.gdn_tree import bench_commit

    assert bench_commit.build(tmp_path, 0, bench_commit.FORMS["all three, 4000"], "90a").stat().st_size > 10_000


@pytest.mark.parametrize("arch", ["90a", pytest.param("120a", marks=pytest.mark.slow)])
@pytest.mark.skipif(shutil.which(native.command("90a", 128)[0]) is None, reason="needs nvcc")
def test_compiles_without_spills(arch: str) -> None:
    """At the benchmark's head size; what each kernel takes is in the README."""
    from specpilot_kernels.gdn_tree import native_compiled

    found = native_compiled.resources(arch)
    assert len(found) == 5 and not any(one["spill_bytes"] or one["stack_bytes"] for one in found.values()), found


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["90a", "120a"])
@pytest.mark.skipif(shutil.which(native.command("90a", 128)[0]) is None, reason="needs nvcc")
def test_other_shapes_compile_without_spills(arch: str) -> None:
    from specpilot_kernels.gdn_tree import native_compiled

    found = native_compiled.resources(arch, more=True)
    assert len(found) == 5 + 4 * len(native.SHAPES)
    assert not any(one["spill_bytes"] or one["stack_bytes"] for one in found.values()), found
