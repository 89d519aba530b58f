"""The norm beside its reference: every thread's part on a CPU, the kernel on a GPU."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from specpilot_kernels._testing.inputs import activations
from specpilot_kernels.early_release import op, reference

HERE = Path(op.__file__).parent
WIDTHS = (8, 264, 4096, 5120, 8192, 12288, 16384)

SHIM = """
#define __device__
#define __forceinline__ inline
#include <cmath>
#include <cstdint>
#include <cstring>
static inline float __uint_as_float(uint32_t bits) { float value; std::memcpy(&value, &bits, 4); return value; }
static inline uint32_t rounded(float value) {  // to nearest, ties to even; no NaNs here
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
}
static inline uint32_t rounded_pair(float low, float high) { return rounded(low) | rounded(high) << 16; }
#include "row.cuh"
static float of_warp(float* value) {  // the butterfly: every lane ends with the same sum
  for (int offset = 16; offset; offset /= 2) {
    float next[32];
    for (int lane = 0; lane < 32; ++lane) next[lane] = value[lane] + value[lane ^ offset];
    std::memcpy(value, next, sizeof next);
  }
  return value[0];
}
template <int ROUNDS>
static void rows_of(uint16_t* x, uint16_t* residual, const uint16_t* weight, int rows, int d, float offset, float eps) {
  const int threads = threads_for(d);
  for (int row = 0; row < rows; ++row, x += d, residual += d) {
    static RowPart<ROUNDS> part[kMostThreads];
    float sums[32] = {};
    for (int t = 0; t < threads; ++t) part[t] = add_part<ROUNDS>(x, residual, d, t, threads);
    for (int warp = 0; warp < threads / 32; ++warp) {
      float lanes[32];
      for (int lane = 0; lane < 32; ++lane) lanes[lane] = part[32 * warp + lane].squares;
      sums[warp] = of_warp(lanes);
    }
    const float inverse = 1.f / std::sqrt(of_warp(sums) / d + eps);
    for (int t = 0; t < threads; ++t) {
      Eight scale[ROUNDS];
      read_weight(scale, weight, d, t, threads);
      scale_part(x, scale, part[t], inverse, offset, d, t, threads);
    }
  }
}
extern "C" void run(uint16_t* x, uint16_t* residual, const uint16_t* weight, int rows, int d, float offset, float eps) {
  if (d <= threads_for(d) * kVector) rows_of<1>(x, residual, weight, rows, d, offset, eps);
  else rows_of<2>(x, residual, weight, rows, d, offset, eps);
}
"""


def inputs(rows: int, d: int, device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x, residual, weight; one row of zeros, one where x takes the residual away, one of denormals."""
    x, residual = (activations(rows, d, device, seed=seed) for seed in (d, d + 1))
    x[0], residual[0] = 0.0, 0.0
    x[1] = -residual[1]
    x[2], residual[2] = 1e-39, 0.0
    return x, residual, activations(1, d, device, seed=d + 2)[0] / 8


def assert_right(
    made: torch.Tensor, new: torch.Tensor, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, offset: float
) -> None:
    exact, total = reference.add_rmsnorm(x, residual, weight, 1e-6, offset)
    assert torch.equal(new.view(torch.int16), total.view(torch.int16))
    assert bool(((made.double() - exact).abs() <= reference.bound(exact)).all())


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("early_release")
    (folder / "shim.cpp").write_text(SHIM)
    words = ["c++", "-O1", "-ffp-contract=off", "-shared", "-fPIC", f"-I{HERE}"]
    subprocess.run([*words, str(folder / "shim.cpp"), "-o", str(folder / "shim.so")], check=True)
    return ctypes.CDLL(str(folder / "shim.so"))


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("d", WIDTHS)
def test_every_thread_on_a_cpu(emulated: ctypes.CDLL, d: int, offset: float) -> None:
    x, residual, weight = inputs(5, d, "cpu")
    made, new = x.clone(), residual.clone()
    places = [ctypes.c_void_p(t.data_ptr()) for t in (made, new, weight)]
    emulated.run(*places, ctypes.c_int(5), ctypes.c_int(d), ctypes.c_float(offset), ctypes.c_float(1e-6))
    assert_right(made, new, x, residual, weight, offset)


def test_what_it_does_not_take() -> None:
    x, residual, weight = inputs(3, 64, "cpu")
    assert op.takes(x, residual, weight)
    assert not op.takes(x.float(), residual, weight) and not op.takes(x[0], residual[0], weight)
    assert not op.takes(x[:, :60], residual[:, :60], weight[:60]) and not op.takes(x, residual[:2], weight)
    wide = torch.zeros(1, 16392, dtype=torch.bfloat16)
    assert not op.takes(wide, wide, wide[0])
    with pytest.raises(ValueError, match="CUDA BF16"):
        op.add_rmsnorm(x, residual, weight, 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("d", WIDTHS)
def test_the_kernel(d: int, offset: float) -> None:
    x, residual, weight = inputs(33, d, "cuda")
    made, new = x.clone(), residual.clone()
    op.add_rmsnorm(made, new, weight, 1e-6, offset)
    assert_right(made, new, x, residual, weight, offset)


@pytest.mark.gpu
@pytest.mark.parametrize("d", [4096, 5120])
def test_flashinfers_bits(d: int) -> None:
    theirs = pytest.importorskip("sgl_kernel")
    x, residual, weight = inputs(33, d, "cuda")
    for call, offset in ((theirs.fused_add_rmsnorm, 0.0), (theirs.gemma_fused_add_rmsnorm, 1.0)):
        made, new, other, total = x.clone(), residual.clone(), x.clone(), residual.clone()
        op.add_rmsnorm(made, new, weight, 1e-6, offset)
        call(other, total, weight, 1e-6)
        assert torch.equal(new, total) and torch.equal(made, other)


@pytest.mark.gpu
def test_a_product_launched_early_behind_it_reads_finished_rows() -> None:
    from specpilot_kernels._testing.inputs import realistic_weight
    from specpilot_kernels.w12_gemm import op as gemm
    from specpilot_kernels.w12_gemm.prepare import prepare
    from specpilot_kernels.w12_pack import op as w12

    packed = prepare(w12.pack(realistic_weight(4096, 4096, "cuda", seed=1)))
    for rows in (3, 32):
        x, residual, weight = inputs(rows, 4096, "cuda")
        made, new = x.clone(), residual.clone()
        op.add_rmsnorm(made, new, weight, 1e-6)
        torch.cuda.synchronize()
        alone = gemm.matmul(made, packed)
        # a chain: whoever read too early would see an earlier round's rows
        for _ in range(50):
            again, place = x.clone(), residual.clone()
            op.add_rmsnorm(again, place, weight, 1e-6)
            y = gemm.matmul(again, packed, launch=gemm.EARLY)
            assert torch.equal(y, alone)
