"""The codec of `codec.c`, compiled once by the system's C compiler: several times faster than torch passes on a CPU.

Optional: where there is no compiler, or `SPECPILOT_W12_CODEC=torch`, `op.py` does the same with torch, bit for bit.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch
from specpilot_kernels.w12_pack.torch_codec import RECORD_BYTES, TILE_CHANNELS, TILE_K, Parts

SOURCE = Path(__file__).resolve().parent / "codec.c"


def _flags() -> tuple[str, ...]:
    wide: tuple[str, ...] = ()
    info = Path("/proc/cpuinfo")
    if info.exists() and " avx2 " in info.read_text(errors="replace"):
        wide = ("-mavx2",)
    return ("-O3", "-std=c11", "-shared", "-fPIC", *wide)


def _compiled() -> Path | None:
    flags = _flags()
    digest = hashlib.sha256("\0".join(flags).encode() + SOURCE.read_bytes()).hexdigest()
    try:
        from platformdirs import user_cache_path

        target = user_cache_path("specpilot") / "kernels" / f"w12_pack-{digest[:16]}.so"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CC", "cc"), *flags, str(SOURCE), "-o", str(partial)]
        subprocess.run(command, check=True, capture_output=True)
        partial.replace(target)
    except (ImportError, OSError, subprocess.CalledProcessError):
        return None  # no cache to write to, no compiler or an old one: torch does it
    return target


@cache
def _loaded() -> ctypes.CDLL | None:
    path = _compiled() if sys.byteorder == "little" else None
    if path is None:
        return None
    loaded = ctypes.CDLL(str(path))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.w12_pack_tile.argtypes = [pointer, number, number, *[pointer] * 5]
    loaded.w12_pack_tile.restype = number
    loaded.w12_unpack_tile.argtypes = [pointer, pointer, number, number, pointer]
    loaded.w12_unpack_tile.restype = None
    return loaded


def available() -> bool:
    """Whether the compiled codec can be used: read anew each time, so that a test can switch it off."""
    return os.environ.get("SPECPILOT_W12_CODEC") != "torch" and _loaded() is not None


def _row(tensor: torch.Tensor, index: int) -> int:
    return tensor.data_ptr() + index * tensor.stride(0) * tensor.element_size()


def pack(bits: torch.Tensor) -> Parts:
    """Contiguous int16 patterns `[N, K]` on the CPU to the parts of a packed matrix, in as many threads as torch has.

    Returns records, window_low uint8 `[Np]`, escapes a channel int64 `[Np]`, escape_column int32, escape_bits int16.
    """
    codec = _loaded()
    assert codec is not None
    n, k = bits.shape
    tiles, steps = -(-n // TILE_CHANNELS), -(-k // TILE_K)
    records = torch.empty(tiles, steps, RECORD_BYTES, dtype=torch.uint8)
    low = torch.empty(tiles * TILE_CHANNELS, dtype=torch.uint8)
    count = torch.empty(tiles * TILE_CHANNELS, dtype=torch.int64)

    def one(tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = tile * TILE_CHANNELS
        rows = min(TILE_CHANNELS, n - first)
        column, pattern = torch.empty(rows * k, dtype=torch.int32), torch.empty(rows * k, dtype=torch.int16)
        found = codec.w12_pack_tile(
            _row(bits, first),
            rows,
            k,
            _row(records, tile),
            _row(low, first),
            _row(count, first),
            column.data_ptr(),
            pattern.data_ptr(),
        )
        return column[:found].clone(), pattern[:found].clone()

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        lists = list(pool.map(one, range(tiles)))
    return records, low, count, torch.cat([c for c, _ in lists]), torch.cat([p for _, p in lists])


def unpack(records: torch.Tensor, low: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Records `[tiles, steps, 12288]` and windows to int16 patterns `[N, K]`; escapes are still code 0."""
    codec = _loaded()
    assert codec is not None
    out = torch.empty(n, k, dtype=torch.int16)
    records, low = records.contiguous(), low.contiguous()

    def one(tile: int) -> None:
        first = tile * TILE_CHANNELS
        rows = min(TILE_CHANNELS, n - first)
        codec.w12_unpack_tile(_row(records, tile), _row(low, first), rows, k, _row(out, first))

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(one, range(records.shape[0])))
    return out
