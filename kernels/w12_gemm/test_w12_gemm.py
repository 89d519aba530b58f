"""W12 GEMM: the decoder over every code on the CPU, the kernel against float64 on a GPU."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from specpilot_kernels._testing.inputs import activations, adversarial_weight, realistic_weight
from specpilot_kernels._testing.tolerance import gemm_bound
from specpilot_kernels.w12_gemm import bench, gen_wgmma, op, reference, tables
from specpilot_kernels.w12_gemm.prepare import PATCHES, Prepared, prepare
from specpilot_kernels.w12_pack import op as w12
from specpilot_kernels.w12_pack import torch_codec

HERE = Path(gen_wgmma.__file__).parent

SHIM = """
#define __device__
#define __forceinline__ inline
#include <cstdint>
static inline uint32_t __funnelshift_l(uint32_t lo, uint32_t hi, int by) { return hi << by | lo >> (32 - by); }
static inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, int by) { return lo >> by | hi << (32 - by); }
#include "decode.cuh"
extern "C" void run(const uint32_t* w0, const uint32_t* w1, const uint32_t* b, uint32_t* out, int n) {
  for (int i = 0; i < n; ++i) {
    uint32_t a[4];
    decode(w0[i], w1[i], b[i], kExponentBase, a);
    for (int j = 0; j < 4; ++j) out[4 * i + j] = a[j];
  }
}
extern "C" void run_view(const uint32_t* w0, const uint32_t* w1, uint32_t* out, int n) {
  for (int i = 0; i < n; ++i) {
    uint32_t a[4];
    decode_view(w0[i], w1[i], kViewBase, a);
    for (int j = 0; j < 4; ++j) out[4 * i + j] = a[j];
  }
}
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_decoder_on_every_code_in_every_place(tmp_path: Path) -> None:
    source, shared = tmp_path / "shim.cpp", tmp_path / "shim.so"
    source.write_text(SHIM)
    subprocess.run(["c++", "-O1", "-shared", "-fPIC", f"-I{HERE}", str(source), "-o", str(shared)], check=True)
    generator = torch.Generator().manual_seed(0)
    # eight shuffled copies of all 4,096 codes: every code stands in every half of every register
    code = torch.stack([torch.randperm(4096, generator=generator) for _ in range(8)], 1).int()
    half = (code & 0x7FF) | (code >> 11 << 15)
    pairs = half[:, 0::2] | half[:, 1::2] << 16
    words = [word.contiguous() for word in torch_codec._to_words(*pairs.unbind(1))]
    out = torch.empty_like(pairs)
    loaded = ctypes.CDLL(str(shared))
    loaded.run(*(ctypes.c_void_p(t.data_ptr()) for t in [*words, out]), ctypes.c_int(4096))
    # BF16 exponents 0x70 + offset: the constant 0x3800 in the otherwise empty bits 14..11
    assert torch.equal(out, pairs | 0x38003800)
    loaded.run_view(*(ctypes.c_void_p(t.data_ptr()) for t in [*words[:2], out]), ctypes.c_int(4096))
    assert torch.equal(out, (pairs & ~0x000F000F) | 0x38083808)


def test_wgmma_wrappers_are_what_the_generator_writes() -> None:
    assert (HERE / "wgmma_rs.cuh").read_text() == gen_wgmma.HEADER + "".join(map(gen_wgmma.wrapper, gen_wgmma.ROWS))


def assert_close(y: torch.Tensor, x: torch.Tensor, packed: w12.W12Tensor, view: bool = False) -> None:
    exact = reference.matmul(x, packed, view)
    bound = gemm_bound(exact, reference.absolute_sum(x, packed, view), packed.shape[1])
    assert bool(((y.double() - exact).abs() <= bound).all())


# odd tile counts, a K that is not a multiple of 64, more blocks than tiles, and more tiles than blocks
SHAPES = [(1160, 1000), (128, 64), (2, 8), (5120, 640), (40000, 136)]


LAUNCHES = (op.Launch(split=0), op.Launch(split=0, ahead=16), op.Launch(split=1), op.Launch(split=3, ahead=2, lead=1))


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("make", [realistic_weight, adversarial_weight])
def test_every_variant_against_float64(
    n: int, k: int, make: Callable[..., torch.Tensor], poisoned: Callable[..., torch.Tensor]
) -> None:
    packed = w12.pack(make(n, k, "cuda", seed=n))
    prepared = prepare(packed)

    @cache
    def case(m: int, view: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = activations(m, k, "cuda", seed=m)
        exact = reference.matmul(x, packed, view)
        return x, exact, gemm_bound(exact, reference.absolute_sum(x, packed, view), k)

    for variant in op.variants():
        for m in {1, variant.rows - 1, variant.rows}:
            x, exact, bound = case(m, variant.view)
            for launch in LAUNCHES:
                first, second = (poisoned((m, n), device="cuda") for _ in range(2))
                op.matmul(x, prepared, out=first, variant=variant, launch=launch)
                op.matmul(x, prepared, out=second, variant=variant, launch=launch)
                assert bool(((first.double() - exact).abs() <= bound).all()), (variant, m, launch)
                assert torch.equal(first, second), (variant, m, launch)


@pytest.mark.gpu
@pytest.mark.parametrize("view", [False, True])
def test_bias_and_residual(view: bool) -> None:
    packed = w12.pack(adversarial_weight(1160, 1000, "cuda", seed=1))
    prepared = prepare(packed)
    x, bias = activations(7, 1000, "cuda", seed=2), activations(1, 1160, "cuda", seed=3)[0]
    residual = activations(7, 1160, "cuda", seed=4)
    exact = reference.matmul(x, packed, view) + bias.double()
    bound = gemm_bound(exact, reference.absolute_sum(x, packed, view) + bias.double().abs(), 1000)
    for launch in LAUNCHES:
        biased = op.matmul(x, prepared, bias=bias, launch=launch, view=view)
        assert bool(((biased.double() - exact).abs() <= bound).all())
        # the residual has the bits of a separate addition, also in place
        assert torch.equal(
            op.matmul(x, prepared, bias=bias, residual=residual, launch=launch, view=view), biased + residual
        )
        place = residual.clone()
        op.matmul(x, prepared, out=place, bias=bias, residual=place, launch=launch, view=view)
        assert torch.equal(place, biased + residual)


@pytest.mark.gpu
@pytest.mark.parametrize("view", [False, True])
def test_triton_on_a_gpu(view: bool) -> None:
    from specpilot_kernels.w12_gemm import triton_kernel

    packed = w12.pack(adversarial_weight(1160, 1000, "cuda", seed=1))
    for m in (1, 17, 100):
        x = activations(m, 1000, "cuda", seed=m)
        assert_close(triton_kernel.matmul(x, packed, view), x, packed, view)


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter does not compile")
@pytest.mark.parametrize("capability", [90, 120])
def test_triton_compiles_without_a_gpu(capability: int) -> None:
    # 120: RTX PRO 6000 and RTX 50; compiled to machine code, not run
    triton = pytest.importorskip("triton")
    from specpilot_kernels.w12_gemm import triton_kernel
    from triton.backends.compiler import GPUTarget

    types = {"x": "*bf16", "records": "*u32", "window_low": "*u8", "start": "*i32", "column": "*i32", "pattern": "*u16"}
    types |= {"y": "*bf16", "m": "i32", "n": "i32", "k": "constexpr", "steps": "constexpr", "M": "constexpr"}
    constants = {"k": 5120, "steps": 80, "M": 16, "VIEW": False}
    source = triton.compiler.ASTSource(triton_kernel._gemm, types | {"VIEW": "constexpr"}, constants)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32))
    assert f"sm_{capability}" in made.asm["ptx"] and len(made.asm["cubin"]) > 1000


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="run with TRITON_INTERPRET=1")
@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize(("n", "k", "m"), [(130, 100, 3), (256, 64, 20), (2, 8, 1)])
def test_triton_in_the_interpreter(n: int, k: int, m: int, view: bool) -> None:
    from specpilot_kernels.w12_gemm import triton_kernel

    packed = w12.pack(adversarial_weight(n, k, "cpu", seed=n))
    x = activations(m, k, "cpu", seed=m).float()
    y = triton_kernel.matmul(x, packed, view)
    assert_close(y, x, packed, view)
    # float32 out of float32 sums: far closer than the bound of a BF16 result. A channel of zeros has the smallest
    # codes, 2^-126, added and taken away again.
    exact, scale = reference.matmul(x, packed, view), reference.absolute_sum(x, packed, view)
    assert bool(((y.double() - exact).abs() <= (k + 8) * 2.0**-23 * scale + 2.0**-110).all())


@pytest.mark.gpu
def test_infinities_and_nans_come_through() -> None:
    weight = realistic_weight(256, 256, "cuda", seed=3)
    weight[5, 7], weight[6, 8], weight[9, 1] = float("inf"), float("-inf"), float("nan")
    x = activations(4, 256, "cuda", seed=4)
    y, exact = op.matmul(x, prepare(w12.pack(weight))), x.double() @ weight.double().T
    assert torch.equal(y.isnan(), exact.isnan())
    assert torch.equal(y.isinf(), exact.isinf())
    assert torch.equal(y[y.isinf()].double(), exact[exact.isinf()])


def test_shapes_that_cannot_run_are_refused() -> None:
    packed = prepare(w12.pack(torch.randn(128, 64).bfloat16()))
    with pytest.raises(ValueError, match="CUDA BF16"):
        op.matmul(torch.randn(2, 64).bfloat16(), packed)


class FakeKernels:
    """The table of variants, and an occupancy calculator for groups of 16 multiprocessors."""

    def w12_gemm_clusters(self, entry: int, split: int) -> int:
        return 8 * (16 // split)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names = {"slim6": (1, (8, 16, 24, 32)), "wide4": (2, (8, 16, 24, 32, 48, 64)), "tall": (1, (96, 128, 192, 256))}
    names["view6"] = (2, (8, 16, 24, 32, 48, 64))
    made = [(name, rows, records) for name, (records, sizes) in names.items() for rows in sizes]
    every = tuple(
        op.Variant(i, name, rows, records, name == "view6", 0) for i, (name, rows, records) in enumerate(made)
    )
    monkeypatch.setattr(op, "variants", lambda: every)
    monkeypatch.setattr(op, "_shared_object", FakeKernels)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    caches = (op._device, op.choose, op.even_split)
    for cached in caches:
        cached.cache_clear()
    yield
    for cached in caches:
        cached.cache_clear()


@pytest.mark.usefixtures("h200")
def test_blocks_get_whole_tiles_where_that_keeps_the_chip_busy() -> None:
    slim, wide = op.find("slim6", 8), op.find("wide4", 8)
    assert slim and wide
    # 128 and 112 tiles; 272 tiles on 132 multiprocessors; 40 tiles, of which 40 clusters of three do fit here
    assert [op.even_split(slim, n, 0) for n in (16384, 14336, 34816, 5120)] == [1, 1, 0, 3]
    # 64 and 56 tiles in pairs; 20 clusters of six do not fit, of five would leave too many idle
    assert [op.even_split(wide, n, 0) for n in (16384, 14336, 34816, 5120)] == [2, 2, 0, 0]


@pytest.mark.usefixtures("h200")
def test_the_tables_show_what_is_chosen() -> None:
    for shape, (n, _) in bench.SHAPES.items():
        for m in bench.ROWS:
            for mode in ("plain", "early"):
                assert tables.chosen(shape, m, mode) == f"{op.choose(m, n, 0, mode == 'early').name}/{mode}"
    with pytest.raises(ValueError, match="1 to 256 rows"):
        op.choose(257, 128, 0)
    with pytest.raises(ValueError, match="1 to 64 rows"):
        op.choose(65, 128, 0, view=True)


def values_from_patches(prepared: Prepared) -> dict[tuple[int, int], float]:
    """`(channel, column)` to the weight that each patch stands for, by the documented bit fields."""
    found = {}
    for tile, step, slot in prepared.patches.nonzero().tolist():
        word = int(prepared.patches[tile, step, slot]) & 0xFFFFFFFF
        thread, half, step16, register, odd = word & 127, word >> 7 & 1, word >> 8 & 3, word >> 10 & 3, word >> 12 & 1
        channel = 128 * tile + 64 * half + 16 * (thread // 32) + 8 * (register % 2) + thread % 32 // 4
        column = 64 * step + 16 * step16 + 8 * (register // 2) + 2 * (thread % 4) + odd
        value = torch.tensor([word >> 16], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
        found[channel, column] = float(value) * 2.0 ** (int(prepared.window_low[channel]) - 0x70)
    return found


def test_patches_and_hard_list_hold_every_escape() -> None:
    weight = adversarial_weight(300, 200, "cpu", seed=5)
    weight[7, :4] = torch.tensor([float("inf"), float("nan"), 1e-39, 3e38])
    packed = w12.pack(weight)
    prepared = prepare(packed)
    patched = values_from_patches(prepared)
    hard = torch.repeat_interleave(prepared.hard_start.diff().long()).tolist()
    listed = dict(zip(zip(hard, prepared.hard_column.tolist(), strict=True), prepared.hard_bits.tolist(), strict=True))
    channel = torch.repeat_interleave(packed.escape_start.diff().long()).tolist()
    for n, k, bits in zip(channel, packed.escape_column.tolist(), packed.escape_bits.tolist(), strict=True):
        if (n, k) in patched:
            assert patched.pop((n, k)) == float(weight[n, k])
        else:
            assert listed.pop((n, k)) == bits
    assert not patched and not listed
    assert int((prepared.patches != 0).sum(2).max()) == PATCHES  # the channel of zeros overfills its records
