"""Back to BF16: the torch restorer and `expand.cuh` give the packed bits, also where escapes overfill the patches."""

import ctypes
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from specpilot_kernels._testing.inputs import adversarial_weight, realistic_weight
from specpilot_kernels.w12_gemm import op, prepare
from specpilot_kernels.w12_pack import op as w12

HERE = Path(prepare.__file__).parent
SHAPES = [(300, 200), (128, 64), (2, 8), (1160, 1000)]

SHIM = """
#define __device__
#define __forceinline__ inline
#include <cstdint>
#include <vector>
static inline uint32_t __funnelshift_l(uint32_t lo, uint32_t hi, int by) { return hi << by | lo >> (32 - by); }
static inline uint32_t __funnelshift_r(uint32_t lo, uint32_t hi, int by) { return lo >> by | hi << (32 - by); }
#include "expand.cuh"
// What the kernel does, its barriers as ends of loops over the threads.
extern "C" void run(const void* records, const void* low, const void* patches, const void* start, const void* column,
                    const void* bits, void* y, int hard, int n, int k, int tiles, int steps) {
  const Matrix p = {(const uint8_t*)records, (const uint8_t*)low, (const uint32_t*)patches, (const int32_t*)start,
                    (const int32_t*)column, (const uint16_t*)bits, (uint16_t*)y, hard, n, k, steps};
  alignas(16) static uint32_t staged[128 * kExpandStride];
  for (int tile = 0; tile < tiles; ++tile)
    for (int step = 0; step < steps; ++step) {
      for (uint32_t& word : staged) word = 0x7FC17FC1;
      for (int t = 0; t < kExpandThreads; ++t) expand_codes(p, tile, step, t, staged);
      for (int t = 0; t < kExpandThreads; ++t) {
        expand_patches(p, tile, step, t, (uint16_t*)staged);
        expand_hard(p, tile, step, t, (uint16_t*)staged);
      }
      for (int t = 0; t < kExpandThreads; ++t) expand_store(p, tile, step, t, staged);
    }
}
"""


def hard_weight(n: int, k: int, device: str = "cpu") -> torch.Tensor:
    """Escapes of every kind: zeros, tiny, huge, denormal, infinite and NaN weights, a channel of escapes only."""
    weight = adversarial_weight(n, k, device, seed=n)
    weight[n - 1, :4] = torch.tensor([float("inf"), float("nan"), 1e-39, 3e38])
    return weight


def same_bits(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int16), two.view(torch.int16))


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("make", [hard_weight, lambda n, k: realistic_weight(n, k, "cpu", seed=k)])
def test_the_prepared_matrix_holds_every_bit(n: int, k: int, make: Callable[[int, int], torch.Tensor]) -> None:
    weight = make(n, k)
    prepared = prepare.prepare(w12.pack(weight))
    assert same_bits(prepare.restore(prepared), weight)


def test_a_flipped_bit_of_any_part_changes_the_matrix() -> None:
    weight = hard_weight(300, 200)
    for part in ("records", "window_low", "patches", "hard_bits"):
        prepared = prepare.prepare(w12.pack(weight))
        data = getattr(prepared, part).view(torch.uint8).flatten()
        at = int(data.nonzero()[0])
        data[at] ^= 1
        assert not same_bits(prepare.restore(prepared), weight), part


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """`expand.cuh` as plain C++."""
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    folder = tmp_path_factory.mktemp("expand")
    (folder / "shim.cpp").write_text(SHIM)
    command = ["c++", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas", f"-I{HERE}", "shim.cpp", "-o", "shim.so"]
    subprocess.run(command, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "shim.so"))


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_the_kernel_thread_by_thread(n: int, k: int, emulated: ctypes.CDLL) -> None:
    weight = hard_weight(n, k)
    p = prepare.prepare(w12.pack(weight))
    assert p.hard_bits.numel() > 0
    out = torch.full((n + 1, k), float("nan"), dtype=torch.bfloat16)  # the last row must stay
    parts = (p.records, p.window_low, p.patches, p.hard_start, p.hard_column, p.hard_bits, out)
    emulated.run(*(ctypes.c_void_p(t.data_ptr()) for t in parts), p.hard_bits.numel(), n, k, *p.patches.shape[:2])
    assert same_bits(out[:n], weight)
    assert bool(out[n].isnan().all())


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "k"), [*SHAPES, (5120, 6144)])
def test_the_kernel_on_a_gpu(n: int, k: int, poisoned: Callable[..., torch.Tensor]) -> None:
    weight = hard_weight(n, k, "cuda")
    packed = w12.pack(weight)
    for part, other in zip(vars(packed).values(), vars(w12.pack(weight.cpu())).values(), strict=True):
        assert torch.equal(part.cpu(), other) if isinstance(part, torch.Tensor) else part == other
    out = op.expand(prepare.prepare(packed), poisoned((n, k), device="cuda"))
    assert same_bits(out, weight)
