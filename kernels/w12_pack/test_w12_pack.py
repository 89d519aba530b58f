"""W12 codec: bitwise against the one-weight-at-a-time reference, and bitwise round trips."""

import zlib
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from specpilot_kernels.w12_pack import native, op, reference, unused

QWEN_27B = [(34816, 5120), (5120, 17408), (14336, 5120), (5120, 6144), (16384, 5120)]


@pytest.fixture(autouse=True, scope="module", params=["compiled", "compiled without vectors", "torch"])
def codec(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with the compiled codec, as this machine and as the least one has it, and with torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPILOT_W12_CODEC", "torch" if request.param == "torch" else "compiled")
        if "without" in request.param:
            patch.setattr(native, "_vectors", lambda: ())
        native._loaded.cache_clear()
        if request.param != "torch" and not native.available():
            pytest.skip("needs a C compiler")
        yield request.param
    native._loaded.cache_clear()


def as_bf16(bits: torch.Tensor) -> torch.Tensor:
    """Integer patterns 0..65535 of any shape as BF16."""
    return bits.to(torch.int32).to(torch.int16).view(torch.bfloat16)


def patterns(weight: torch.Tensor) -> list[list[int]]:
    return [[value & 0xFFFF for value in row] for row in weight.view(torch.int16).tolist()]


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual.view(torch.int16), expected.view(torch.int16))


def gaussian(n: int, k: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).mul(0.02).bfloat16()


@pytest.mark.parametrize("columns", [65536, 256, 64, 1])
def test_every_bf16_pattern_survives(columns: int) -> None:
    weight = as_bf16(torch.arange(65536)).reshape(-1, columns)
    assert_same_bits(op.unpack(op.pack(weight)), weight)


def test_every_pattern_in_random_company() -> None:
    order = torch.randperm(65536, generator=torch.Generator().manual_seed(1))
    weight = as_bf16(order).reshape(512, 128)
    assert_same_bits(op.unpack(op.pack(weight)), weight)


# 1 and 127..129 channels, 63..65 columns: each side of a tile edge; 1 x 1: the smallest matrix
@pytest.mark.parametrize(("n", "k"), [(1, 1), (127, 63), (128, 64), (129, 65), (1025, 96), (256, 192)])
def test_records_follow_the_documented_bit_positions(n: int, k: int) -> None:
    weight = gaussian(n, k)
    weight[0, 0], weight[n // 2, k // 2] = 0.0, float("inf")
    packed = op.pack(weight)
    assert_same_bits(op.unpack(packed), weight)
    if n * k > 20000:  # the reference writes bit by bit
        return
    planes = reference.pack(patterns(weight))
    assert reference.unpack(planes) == patterns(weight)
    assert packed.window_low[:n].tolist() == planes.low
    for tile_n in range(packed.records.shape[0]):
        for tile_k in range(packed.records.shape[1]):
            assert bytes(packed.records[tile_n, tile_k].tolist()) == reference.record(planes, tile_n, tile_k)


def test_bit_positions_fill_the_record_exactly_once() -> None:
    used = [bit for n in range(128) for k in range(64) for bit in reference.bit_positions(n, k)]
    assert sorted(used) == list(range(8 * reference.RECORD_BYTES))
    view = [bit for n in range(128) for k in range(64) for bit in reference.bit_positions(n, k)[:8]]
    assert max(view) < 8 * op.VIEW_BYTES


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.integers(0, 65535), min_size=1, max_size=40), min_size=1, max_size=4), st.data())
def test_windows_and_escapes_equal_the_reference(rows: list[list[int]], data: st.DataObject) -> None:
    width = min(len(row) for row in rows)
    mask = data.draw(st.sampled_from([0xFFFF, 0x8FFF, 0x0FFF, 0x47FF]))  # fewer exponents: more ties, fuller windows
    weight = as_bf16(torch.tensor([[bits & mask for bits in row[:width]] for row in rows]))
    packed, planes = op.pack(weight), reference.pack(patterns(weight))
    assert packed.window_low[: len(rows)].tolist() == planes.low
    channel = torch.repeat_interleave(packed.escape_start.diff().long())
    listed = zip(channel.tolist(), packed.escape_column.tolist(), packed.escape_bits.tolist(), strict=True)
    assert [(n, c, bits & 0xFFFF) for n, c, bits in listed] == planes.escapes
    assert_same_bits(op.unpack(packed), weight)


def round_trip(n: int, k: int, seed: int, log2_scale: float, wild: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    weight = (torch.randn(n, k, generator=generator) * 2**log2_scale).bfloat16()
    noise = as_bf16(torch.randint(0, 65536, (n, k), generator=generator))
    weight = torch.where(torch.rand(n, k, generator=generator) < wild, noise, weight)
    assert_same_bits(op.unpack(op.pack(weight)), weight)


MATRICES = (
    st.integers(1, 300),
    st.integers(1, 200),
    st.integers(0, 2**31),
    st.floats(-30, 30),
    st.sampled_from([0, 0.001, 0.3, 1]),
)


@settings(max_examples=60, deadline=None)
@given(*MATRICES)
def test_random_matrices_round_trip(n: int, k: int, seed: int, log2_scale: float, wild: float) -> None:
    round_trip(n, k, seed, log2_scale, wild)


@pytest.mark.slow
@settings(max_examples=10_000, deadline=None, database=None)
@given(*MATRICES)
def test_ten_thousand_matrices_round_trip(n: int, k: int, seed: int, log2_scale: float, wild: float) -> None:
    round_trip(n, k, seed, log2_scale, wild)


def test_both_codecs_write_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = gaussian(300, 200)
    weight[7, :9] = as_bf16(torch.tensor([0, 1, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0080, 0x7F7F]))
    weight[9] = as_bf16(torch.randint(0, 65536, (200,), generator=torch.Generator().manual_seed(2)))
    one = op.pack(weight)
    monkeypatch.setenv("SPECPILOT_W12_CODEC", "torch")
    two = op.pack(weight)
    for name in ("records", "window_low", "escape_start", "escape_column", "escape_bits"):
        assert torch.equal(getattr(one, name), getattr(two, name)), name


# 1 to 70 columns: every number of bytes that the eights and sixteens leave over; 4096: long rows, folded
@pytest.mark.parametrize("columns", [*range(1, 71), 127, 4096, 4100])
def test_checks_are_those_of_zlib(columns: int) -> None:
    draw = torch.randint(0, 65536, (3, columns), generator=torch.Generator().manual_seed(columns))
    weight = as_bf16(draw)
    expected = [zlib.crc32(bytes(row)) for row in weight.view(torch.uint8).numpy()]
    assert [value & 0xFFFFFFFF for value in op.checks(weight).tolist()] == expected


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), QWEN_27B)
def test_gaussian_weights_of_a_27b_model_cost_at_most_12_03_bits(n: int, k: int) -> None:
    assert 12.0 < op.pack(gaussian(n, k, seed=n)).bits_per_weight < 12.03  # 17408 columns: 12.006


def test_gaussian_weights_cost_little_more_than_twelve_bits() -> None:
    packed = op.pack(gaussian(512, 5120))
    assert packed.escape_column.numel() / (512 * 5120) < 2e-4
    assert 12.0 < packed.bits_per_weight < 12.03


def test_eight_bit_view_keeps_the_top_mantissa() -> None:
    weight = gaussian(128, 256)
    packed = op.pack(weight)
    bits, view = weight.view(torch.int16), op.view8(packed).view(torch.int16)
    inside = torch.ones(128, 256, dtype=torch.bool)
    channel = torch.repeat_interleave(packed.escape_start.diff().long())
    inside[channel, packed.escape_column.long()] = False
    assert torch.equal(view[inside], ((bits & ~15) | 8)[inside])
    assert torch.equal(view[~inside], bits[~inside])


@pytest.mark.parametrize(
    ("field", "damage", "message"),
    [
        ("records", lambda t: t[:, :-1], "records"),
        ("window_low", lambda t: t[:-1], "window_low"),
        ("window_low", lambda t: t * 0, "channel 0"),
        ("escape_start", lambda t: t[:-1], "escape_start"),
        ("escape_start", lambda t: -t, "not ascending"),
        ("escape_column", lambda t: t[:-1], "truncated"),
        ("escape_bits", lambda t: t[:-1], "truncated"),
        ("escape_column", lambda t: t + 1000, "outside K"),
        ("escape_column", lambda t: t.flip(0), "ascending"),
    ],
)
def test_damaged_parts_are_refused(field: str, damage: object, message: str) -> None:
    weight = gaussian(130, 100)
    weight[3, :5] = 0.0
    packed = op.pack(weight)
    broken = replace(packed, **{field: damage(getattr(packed, field))})  # type: ignore[operator]
    with pytest.raises(op.W12FormatError, match=message):
        op.unpack(broken)


def test_codes_at_places_are_those_of_the_whole_matrix() -> None:
    weight = gaussian(300, 200)
    packed = op.pack(weight)
    channel, column = torch.meshgrid(torch.arange(300), torch.arange(200), indexing="ij")
    found = unused.codes_at(packed, channel.flatten(), column.flatten())
    low = packed.window_low[:300].long()[:, None] << 7
    escaped = torch.zeros(300, 200, dtype=torch.bool)
    escaped[torch.repeat_interleave(packed.escape_start.diff().long()), packed.escape_column.long()] = True
    codes = (weight.view(torch.int16).long() & 0xFFFF) - low
    assert torch.equal(found.view(300, 200), torch.where(escaped, 0, codes))


@pytest.mark.parametrize(
    ("n", "k", "channel", "message"), [(130, 100, 129, "escape"), (130, 100, 131, "padding"), (128, 100, 7, "padding")]
)
def test_what_no_weight_is_read_from_is_empty(n: int, k: int, channel: int, message: str) -> None:
    weight = gaussian(n, k)
    weight[min(channel, n - 1), 70] = 0.0
    packed = op.pack(weight)
    op.check_unused(packed)
    column = 70 if message == "escape" else 101
    for bit in reference.bit_positions(channel, column):
        records = packed.records.clone()
        records[channel // 128, column // 64, bit // 8] ^= 1 << bit % 8
        with pytest.raises(op.W12FormatError, match=f"{message}.*channel {channel}"):
            op.check_unused(replace(packed, records=records))
    if n % 128:
        low = packed.window_low.clone()
        low[-1] = 2
        with pytest.raises(op.W12FormatError, match="window"):
            op.check_unused(replace(packed, window_low=low))


@pytest.mark.parametrize("weight", [torch.zeros(4, 4), torch.zeros(4).bfloat16(), torch.zeros(0, 4).bfloat16()])
def test_other_inputs_are_refused(weight: torch.Tensor) -> None:
    with pytest.raises(op.W12FormatError, match="BF16 matrix"):
        op.pack(weight)


@pytest.mark.gpu
def test_gpu_packs_the_same_bytes() -> None:
    weight = gaussian(300, 200)
    weight[7, :9] = as_bf16(torch.tensor([0, 1, 0x8000, 0x7F80, 0xFF80, 0x7FC1, 0xFFFF, 0x0080, 0x7F7F]))
    here, there = op.pack(weight), op.pack(weight.cuda()).to("cpu")
    for name in ("records", "window_low", "escape_start", "escape_column", "escape_bits"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
