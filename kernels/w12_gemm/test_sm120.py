"""The mma.sync product thread by thread on a CPU: everything but the copies' timing, which needs a device."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specpilot_kernels._testing.inputs import activations, adversarial_weight, realistic_weight
from specpilot_kernels._testing.tolerance import gemm_bound
from specpilot_kernels.w12_gemm import reference, sm120
from specpilot_kernels.w12_gemm.prepare import prepare
from specpilot_kernels.w12_pack import op as w12

HERE = Path(sm120.__file__).parent

# The kernels with their barriers as ends of loops over the threads. `multiply` is mma.sync.m16n8k16 by the PTX manual's
# tables: a = rows g, g+8 and columns 2t, 2t+8; b = columns 2t, 2t+8 of row g; d = rows g, g+8 and columns 2t.
SHIM = """
#define __device__
#define __forceinline__ inline
#include <cstdint>
#include <vector>
static inline uint32_t __funnelshift_l(uint32_t lo, uint32_t hi, int by) { return hi << by | lo >> (32 - by); }
static inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, int by) { return lo >> by | hi << (32 - by); }
#include "sm120.cuh"

static float part_of(uint32_t word, int odd) { return from_bf16(odd ? word >> 16 : word & 0xFFFF); }

static void multiply(float (*d)[4], const uint32_t (*a)[4], const uint32_t (*b)[2]) {
  float left[16][16], right[8][16];
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      for (int odd = 0; odd < 2; ++odd) {
        left[lane / 4 + 8 * (i % 2)][2 * (lane % 4) + 8 * (i / 2) + odd] = part_of(a[lane][i], odd);
        if (i < 2) right[lane / 4][2 * (lane % 4) + 8 * i + odd] = part_of(b[lane][i], odd);
      }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i)
      for (int k = 0; k < 16; ++k) d[lane][i] += left[lane / 4 + 8 * (i / 2)][k] * right[2 * (lane % 4) + i % 2][k];
}

template <class T>
static void block(const Product& p, int tile, int part) {
  alignas(16) static uint8_t stage[T::kStageBytes];
  static float acc[kMmaThreads][T::kBlocks8][4];
  memset(acc, 0, sizeof acc);
  for (int step = part_begin(p, part); step < part_begin(p, part + 1); ++step) {
    memset(stage, 0xC1, sizeof stage);
    for (int t = 0; t < kMmaThreads; ++t) fetch<T>(p, tile, step, t, stage);
    static uint32_t a[kMmaThreads][4][4];
    for (int t = 0; t < kMmaThreads; ++t) weights<T>(stage, t, a[t]);
    for (int warp = 0; warp < kMmaThreads / 32; ++warp)
      for (int k16 = 0; k16 < 4; ++k16)
        for (int j = 0; j < T::kBlocks8; ++j) {
          uint32_t left[32][4], right[32][2];
          float d[32][4];
          for (int lane = 0; lane < 32; ++lane) {
            memcpy(left[lane], a[32 * warp + lane][k16], 16), memcpy(d[lane], acc[32 * warp + lane][j], 16);
            rows<T>(stage, lane, k16, j, right[lane]);
          }
          multiply(d, left, right);
          for (int lane = 0; lane < 32; ++lane) memcpy(acc[32 * warp + lane][j], d[lane], 16);
        }
  }
  for (int t = 0; t < kMmaThreads; ++t) store_part<T>(p, tile, part, t, acc[t]);
}

template <int BLOCKS8, bool VIEW_ONLY>
static void run(const Product& p) {
  using T = Tile<BLOCKS8, VIEW_ONLY>;
  for (int tile = 0; tile < p.tiles; ++tile)
    for (int part = 0; part < p.split; ++part) block<T>(p, tile, part);
  for (int row = 0; row < p.m; ++row)
    for (int channel = 0; channel < p.n; ++channel) add_parts(p, T::kRows, VIEW_ONLY, row, channel);
}

extern "C" void emulate(const Product* p, int rows, int view) {
  if (rows == 8) view ? run<1, true>(*p) : run<1, false>(*p);
  if (rows == 16) view ? run<2, true>(*p) : run<2, false>(*p);
  if (rows == 32) view ? run<4, true>(*p) : run<4, false>(*p);
  if (rows == 64) view ? run<8, true>(*p) : run<8, false>(*p);
}
"""


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`sm120.cuh` as plain C++."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("sm120")
    (folder / "shim.cpp").write_text(SHIM)
    flags = ["-O2", "-std=c++17", "-ffp-contract=off", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
    subprocess.run(["c++", *flags, f"-I{HERE}", "shim.cpp", "-o", "shim.so"], check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "shim.so"))


def hard_weight(n: int, k: int, device: str = "cpu") -> torch.Tensor:
    """Finite escapes of every kind, more in a record than its patches hold."""
    return adversarial_weight(n, k, device, seed=n)


def gaussian_weight(n: int, k: int, device: str = "cpu") -> torch.Tensor:
    return realistic_weight(n, k, device, seed=k)


def assert_close(
    y: torch.Tensor, x: torch.Tensor, packed: w12.W12Tensor, view: bool, bias: torch.Tensor | None
) -> None:
    extra = 0 if bias is None else bias.double()
    exact = reference.matmul(x, packed, view) + extra
    scale = reference.absolute_sum(x, packed, view) + (0 if bias is None else bias.double().abs())
    assert bool(((y.double() - exact).abs() <= gemm_bound(exact, scale, packed.shape[1])).all())


# odd sizes on each side of a tile, several parts that do not divide the steps, rows on each side of a compiled tile
CASES = [(1, 128, 64, 1), (3, 130, 200, 2), (8, 2, 8, 1), (9, 300, 448, 3), (17, 128, 136, 3), (64, 200, 328, 4)]


@pytest.mark.parametrize(("m", "n", "k", "split"), CASES)
@pytest.mark.parametrize("make", [gaussian_weight, hard_weight])
@pytest.mark.parametrize("view", [False, True])
def test_every_thread_by_hand(
    m: int, n: int, k: int, split: int, make: Callable[[int, int], torch.Tensor], view: bool, emulated: ctypes.CDLL
) -> None:
    packed = w12.pack(make(n, k))
    prepared = prepare(packed)
    x, bias, residual = (
        activations(m, k, "cpu", seed=m),
        activations(1, n, "cpu", seed=1)[0],
        activations(m, n, "cpu", 2),
    )
    rows = sm120.tile_rows(m)
    partial = torch.full((split, rows, 128 * prepared.records.shape[0]), float("nan"))
    out = torch.full((m + 1, n), float("nan"), dtype=torch.bfloat16)  # the last row must stay

    def call(*more: torch.Tensor | None) -> torch.Tensor:
        product = sm120.describe(x, prepared, out, partial, split, *more)
        emulated.emulate(ctypes.byref(product), rows, int(view))
        assert bool(out[m].isnan().all())
        return out[:m].clone()

    plain = call()
    assert_close(plain, x, packed, view, None)
    with_bias = call(bias)
    assert_close(with_bias, x, packed, view, bias)
    assert torch.equal(call(bias, residual), with_bias + residual)


def test_more_escapes_than_patches_were_met() -> None:
    """The hard list is not empty in those cases, and patches are."""
    prepared = prepare(w12.pack(hard_weight(300, 448)))
    assert prepared.hard_bits.numel() > 0 and bool((prepared.patches != 0).any())


def test_a_flipped_bit_of_a_record_is_seen(emulated: ctypes.CDLL) -> None:
    prepared = prepare(w12.pack(gaussian_weight(128, 64)))
    x, out = activations(1, 64, "cpu", seed=0), torch.zeros(1, 128, dtype=torch.bfloat16)
    partial = torch.zeros(1, 8, 128)
    product = sm120.describe(x, prepared, out, partial, 1)
    emulated.emulate(ctypes.byref(product), 8, 0)
    before = out.clone()
    prepared.records[0, 0, 17] ^= 64
    partial.zero_()
    emulated.emulate(ctypes.byref(product), 8, 0)
    assert int((before != out).sum()) == 1


@pytest.mark.parametrize("arch", ["120a", "80"])
def test_it_compiles(arch: str, tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("needs nvcc")
    done = subprocess.run(sm120.command(arch, tmp_path / "x.so"), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_what_is_compiled_and_shared_out() -> None:
    assert [sm120.arch_of(c) for c in ((8, 0), (9, 0), (12, 0))] == ["80", "90", "120a"]
    with pytest.raises(ValueError, match=r"8\.0"):
        sm120.arch_of((7, 5))
    assert [sm120.tile_rows(m) for m in (1, 8, 9, 33, 64)] == [8, 8, 16, 64, 64]
    assert sm120.parts(272, 80, 188) == 1 and sm120.parts(40, 96, 188) == 9 and sm120.parts(1, 2, 188) == 1


@pytest.mark.gpu
@pytest.mark.parametrize(("m", "n", "k", "split"), [*CASES, (8, 5120, 6144, 0)])
@pytest.mark.parametrize("view", [False, True])
def test_on_a_gpu(m: int, n: int, k: int, split: int, view: bool) -> None:
    for make in (gaussian_weight, hard_weight):
        packed = w12.pack(make(n, k, "cuda"))
        x, bias = activations(m, k, "cuda", seed=m), activations(1, n, "cuda", seed=1)[0]
        residual = activations(m, n, "cuda", seed=2)
        y = sm120.matmul(x, prepare(packed), bias=bias, view=view)
        assert_close(y, x, packed, view, bias)
        for _ in range(3):
            again = sm120.matmul(x, prepare(packed), bias=bias, residual=residual, view=view)
            assert torch.equal(again, y + residual)
