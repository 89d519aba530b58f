"""The CUDA C++ variant on a CPU: its own source in `emulate.hpp`, one step of the arithmetic at a time and as a whole.

The second launch's copies and matrix products are the GPU's alone; here plain loops sum the same bytes.
"""

import ctypes
import math
import shutil
import struct
from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from specpilot_kernels.certified_head import cases, layout, native, op, plan, smoke  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(shutil.which(native.command(native.HOST)[0]) is None, reason="needs a C++ compiler")


@pytest.fixture(scope="module")
def calls() -> ctypes.CDLL:
    """The library with the types of its single steps."""
    found = native.loaded(CPU)
    found.certified_head_ordered.argtypes = [ctypes.c_float]
    found.certified_head_rounded.argtypes, found.certified_head_rounded.restype = [ctypes.c_float], ctypes.c_float
    found.certified_head_above.argtypes, found.certified_head_above.restype = [ctypes.c_double], ctypes.c_float
    pointers = [ctypes.POINTER(ctypes.c_float)] * 3
    found.certified_head_bound.argtypes = [ctypes.c_longlong, *pointers]
    return found


def from_bits(word: int) -> float:
    return struct.unpack("<f", struct.pack("<I", word & 0xFFFFFFFF))[0]


FINITE = st.integers(0, 0xFFFFFFFF).map(from_bits).filter(math.isfinite)


@settings(max_examples=400, deadline=None)
@given(FINITE, FINITE)
def test_ordered_keeps_the_order_and_the_rounding_is_torchs(calls: ctypes.CDLL, x: float, y: float) -> None:
    if x < y:
        assert calls.certified_head_ordered(x) < calls.certified_head_ordered(y)
    same = torch.tensor([calls.certified_head_rounded(x), float(torch.tensor(x).bfloat16())])
    assert same[0].view(torch.int32) == same[1].view(torch.int32)


def test_no_float_below_the_edge_rounds_to_the_lower_bound(calls: ctypes.CDLL) -> None:
    """Around every BF16 number: the floats that round to it, and to its neighbours."""
    patterns = torch.arange(1 << 16, dtype=torch.int32)
    low = (patterns << 16).view(torch.float32)
    low = low[low.isfinite()]
    edges = torch.tensor([calls.certified_head_edge(calls.certified_head_ordered(v)) for v in low.tolist()])
    for distance in (0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0x8002, 0x8003, 0xFFFF, 0x10000):
        for sign in (-1, 1):
            near = (low.view(torch.int32) + sign * distance).view(torch.float32)
            word = near.view(torch.int32)
            order = torch.where(word < 0, word ^ 0x7FFFFFFF, word)
            dropped = near.isfinite() & (order < edges)
            assert not bool((dropped & (near.bfloat16() >= low.bfloat16())).any())
            if (distance, sign) == (0x10000, -1):  # the edge is no further away than it must be
                assert bool(dropped[(low > 1e-30) & (low < 1e30)].all())


def test_the_first_lower_bound_of_all_drops_nothing_but_nothing(calls: ctypes.CDLL) -> None:
    assert calls.certified_head_edge(-(2**31)) == -(2**31) + 1


def test_digits(calls: ctypes.CDLL) -> None:
    for value in range(-32639, 32640):
        word = calls.certified_head_digits(value)
        high, low = (byte - 256 if byte > 127 else byte for byte in (word >> 8, word & 255))
        assert 256 * high + low == value


@settings(max_examples=200, deadline=None)
@given(st.floats(0, 1e38))
def test_above_is_the_next_float(calls: ctypes.CDLL, x: float) -> None:
    found = calls.certified_head_above(x)
    assert found >= x
    assert found == 0 or torch.nextafter(torch.tensor(found), torch.tensor(-1.0)).double() < x


SIZES = st.floats(2.0**-40, 2.0**40, width=32)


@settings(max_examples=500, deadline=None)
@given(st.integers(-(2**40), 2**40), SIZES, SIZES, SIZES, st.integers(-60, 30), SIZES, SIZES)
def test_the_bound_contains_what_exact_arithmetic_says(
    calls: ctypes.CDLL, total: int, scale: float, error: float, length: float, unit: int, norm: float, rest: float
) -> None:
    six = (scale, error, length, 2.0**unit, norm, rest)
    low, high = ctypes.c_float(), ctypes.c_float()
    calls.certified_head_bound(total, (ctypes.c_float * 6)(*six), ctypes.byref(low), ctypes.byref(high))
    s, e, n, u, x, r = map(Fraction, six)
    about, room = total * s * u, e * x + n * r
    assert Fraction(low.value) <= about - room and about + room <= Fraction(high.value)
    loss = (abs(about) + room) * Fraction(2) ** -19 + Fraction(2) ** -118
    assert Fraction(high.value) - Fraction(low.value) <= 2 * room + loss


def test_overflow_keeps_a_token(calls: ctypes.CDLL) -> None:
    low, high = ctypes.c_float(), ctypes.c_float()
    big = (ctypes.c_float * 6)(3e38, 3e38, 3e38, 2.0**100, 3e38, 3e38)
    for total in (2**40, -(2**40)):
        calls.certified_head_bound(total, big, ctypes.byref(low), ctypes.byref(high))
        assert (low.value, high.value) == (-math.inf, math.inf)


@pytest.mark.parametrize("shape", [(64, 128), (1, 8), (200, 1000), (130, 256)])
def test_tiles_give_the_copy_back(shape: tuple[int, int]) -> None:
    rows = torch.randint(-127, 128, shape, dtype=torch.int8, generator=torch.Generator().manual_seed(1))
    tiles = layout.tile(rows)
    assert torch.equal(layout.untile(tiles, shape[1])[: shape[0]], rows)
    assert int(tiles.long().abs().sum()) == int(rows.long().abs().sum())  # nothing but zeros beside it
    if shape == (64, 128):
        assert tiles[0, 0, 3, 16 * (5 ^ 3)] == rows[3, 16 * 5]


def test_the_head_in_tiles_bounds_as_the_head_in_rows() -> None:
    weight = cases.head_weight(300, 136, 2)
    x = cases.rows_for(weight, 4, 2)
    rows, tiles = op.prepare(weight, tiles=False), op.prepare(weight, tiles=True)
    assert tiles.quantised.shape == (5, 2, 64, 128)
    for one, two in zip(op.bounds(x, rows), op.bounds(x, tiles), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(op.topk(x, rows, 9)[1], op.topk(x, tiles, 9)[1])


def exact_order(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The argmax of `device.cuh`'s own scores: 32 sums of chunks of eight, added in pairs; lowest token."""
    m, k = x.shape
    parts = torch.zeros(m, len(weight), 32)
    for column in range(k):
        lane = column // 8 % 32
        product = x[:, column].double()[:, None] * weight[:, column].double()
        parts[..., lane] = (product + parts[..., lane].double()).float()  # one rounding, as fma has
    while parts.shape[-1] > 1:
        half = parts.shape[-1] // 2
        parts = parts[..., :half] + parts[..., half:]
    scores = parts[..., 0].bfloat16().float()
    return (scores == scores.amax(1, keepdim=True)).int().argmax(1)


@pytest.mark.parametrize(
    ("name", "m", "v", "k"),
    [("4x1", 1, 64, 8), ("4x1", 1, 1000, 128), ("4x1", 3, 700, 264), ("3x2", 9, 470, 128), ("2x2", 40, 130, 72)],
)
def test_argmax_is_the_heads_own(name: str, m: int, v: int, k: int) -> None:
    weight = cases.head_weight(v, k, v + m)
    x, head = cases.rows_for(weight, m, v), op.prepare(weight, tiles=True)
    expected = exact_order(x, weight)
    for capacity in (plan.CAPACITY, 2, 0):  # few entries, or none: whole blocks are rescored
        found = native.argmax(x, head, native.Launch(name, capacity))
        assert torch.equal(found, expected), capacity


def test_the_order_of_threads_changes_nothing(calls: ctypes.CDLL) -> None:
    weight = cases.head_weight(500, 192, 3)
    x, head = cases.rows_for(weight, 3, 3), op.prepare(weight, tiles=True)
    expected = exact_order(x, weight)
    try:
        for order in range(5):
            calls.certified_head_order(order)
            assert torch.equal(native.argmax(x, head), expected)
    finally:
        calls.certified_head_order(0)


def test_most_tokens_are_dropped_at_once() -> None:
    weight = cases.head_weight(2000, 128, 6)
    x, head = cases.rows_for(weight, 4, 6), op.prepare(weight, tiles=True)
    counts = native.listed(x, head)
    assert counts.shape == (native.HOST_BLOCKS, 4) and counts[:, :2].sum() < 20  # along the head: one token stands out
    assert counts.sum() < 400
    assert bool((counts.sum(0) >= (op.survivors(x, head)).sum(1)).all())


def test_activations_with_outliers_and_of_any_size() -> None:
    weight = cases.head_weight(300, 128, 5)
    head = op.prepare(weight, tiles=True)
    x = cases.rows_for(weight, 4, 5).float()
    x[0, 7], x[1, :64] = 1000.0, 0.0
    for log2 in (-120, -20, 0, 60):
        scaled = (x * 2.0**log2).bfloat16()
        assert torch.equal(native.argmax(scaled, head), exact_order(scaled, weight)), log2
    assert native.argmax(torch.zeros(2, 128).bfloat16(), head).tolist() == [0, 0]


def test_a_head_whose_copy_is_wrong_by_more_than_its_error_is_found_out() -> None:
    """The bound carries the result: without it, a copy that hides the best token would win."""
    weight = cases.head_weight(256, 128, 7)
    x = weight[100:101].clone()
    honest = op.prepare(weight, tiles=True)
    assert int(native.argmax(x, honest)) == int(exact_order(x, weight))
    rows = op.prepare(weight, tiles=False).quantised.clone()
    best = int(exact_order(x, weight))
    rows[best] = 0
    lying = op.Head(weight, layout.tile(rows), honest.scale, honest.error * 0, honest.length)
    assert int(native.argmax(x, lying)) != best
    told = honest.error.clone()
    told[best] = float(weight[best].double().norm()) * 1.01
    assert int(native.argmax(x, op.Head(weight, layout.tile(rows), honest.scale, told, honest.length))) == best


def test_the_smoke_test_finds_the_launch_that_parts_from_torch(capsys: pytest.CaptureFixture[str]) -> None:
    assert smoke.main([], "cpu") == 0 and capsys.readouterr().out.count("ok") == len(native.variants(CPU))
    weight = cases.head_weight(300, 136, 4)
    x, head = cases.rows_for(weight, 4, 4), op.prepare(weight, tiles=True)
    said = smoke.diagnosis(x, head, native.DEFAULT)
    assert said.startswith("digits wrong 0, units wrong 0, best bound / torch's [")
    ratios = [float(word) for word in said.split("[")[1].split("]")[0].split(",")]
    assert all(0.9999 < ratio <= 1 for ratio in ratios)  # the slack of 2^-21 below torch's
    tokens = said.split("its token ")[1].split("]")[0] + "]"
    assert f"torch's {tokens}" in said


def test_what_it_does_not_take() -> None:
    weight = cases.head_weight(70, 16, 1)
    head = op.prepare(weight, tiles=True)
    with pytest.raises(ValueError, match="1 to 64"):
        native.argmax(torch.zeros(65, 16).bfloat16(), head)
    with pytest.raises(ValueError, match="tiles"):
        native.argmax(torch.zeros(1, 16).bfloat16(), op.prepare(weight, tiles=False))
    with pytest.raises(ValueError, match="no shape"):
        native.argmax(torch.zeros(40, 16).bfloat16(), head, native.Launch("4x1"))


@pytest.mark.gpu
@pytest.mark.parametrize("capacity", [plan.CAPACITY, 3])
@pytest.mark.parametrize(("v", "k", "m"), [(700, 192, 5), (5000, 1000, 32), (40000, 5120, 1), (9000, 4096, 64)])
def test_on_a_gpu(v: int, k: int, m: int, capacity: int) -> None:
    weight = cases.head_weight(v, k, 3).cuda()
    x, head = cases.rows_for(weight.cpu(), m, 3).cuda(), op.prepare(weight, tiles=True)
    every = native.argmax(x, head, native.Launch(capacity=0))
    for variant in {found.name for found in native.variants(x.device) if found.columns >= 2 * m}:
        assert torch.equal(native.argmax(x, head, native.Launch(variant, capacity)), every)
