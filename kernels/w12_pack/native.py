"""The codec of `codec.c` and `checks.c`, compiled once by the system's C compiler: many times faster than torch passes.

Optional: where there is no compiler, or `SPECPILOT_W12_CODEC=torch`, `op.py` does the same with torch, bit for bit.
"""

import ctypes
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import TypeVar

import torch
from specpilot_kernels.w12_pack.torch_codec import RECORD_BYTES, TILE_CHANNELS, TILE_K, Parts

T = TypeVar("T")
SOURCES = tuple(Path(__file__).resolve().parent / name for name in ("codec.c", "checks.c"))


FLAGS = ("-O3", "-std=c11", "-shared", "-fPIC")


def _vectors() -> tuple[str, ...]:
    """Instructions of this machine that the codec makes use of."""
    info = Path("/proc/cpuinfo")
    has = set(info.read_text(errors="replace").split()) if info.exists() else set()
    return tuple(flag for name, flag in (("avx2", "-mavx2"), ("pclmulqdq", "-mpclmul")) if name in has)


def _compiled() -> Path | None:
    flags = FLAGS + _vectors()
    sources = b"\0".join(source.read_bytes() for source in SOURCES)
    digest = hashlib.sha256("\0".join(flags).encode() + sources).hexdigest()
    try:
        from platformdirs import user_cache_path

        target = user_cache_path("specpilot") / "kernels" / f"w12_pack-{digest[:16]}.so"
        if target.exists():
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(f".{os.getpid()}")
        command = [os.environ.get("CC", "cc"), *flags, *map(str, SOURCES), "-o", str(partial)]
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
    loaded.w12_checks.argtypes = [pointer, number, number, pointer]
    loaded.w12_checks.restype = None
    return loaded


def available() -> bool:
    """Whether the compiled codec can be used: read anew each time, so that a test can switch it off."""
    return os.environ.get("SPECPILOT_W12_CODEC") != "torch" and _loaded() is not None


def _row(tensor: torch.Tensor, index: int) -> int:
    return tensor.data_ptr() + index * tensor.stride(0) * tensor.element_size()


class _Scratch(threading.local):
    """Room for the escapes of one tile, once a thread: as large as the tile if every weight is one."""

    def __init__(self, count: int) -> None:
        self.column = torch.empty(count, dtype=torch.int32)
        self.pattern = torch.empty(count, dtype=torch.int16)


def _each(call: Callable[[int], T], count: int, threads: int) -> list[T]:
    """`call` of 0 .. count-1, in order."""
    if threads == 1 or count == 1:
        return [call(i) for i in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(call, range(count)))


def pack(bits: torch.Tensor, threads: int) -> Parts:
    """Contiguous int16 patterns `[N, K]` on the CPU to the parts of a packed matrix.

    Returns records, window_low uint8 `[Np]`, escapes a channel int64 `[Np]`, escape_column int32, escape_bits int16.
    """
    codec = _loaded()
    assert codec is not None
    n, k = bits.shape
    tiles, steps = -(-n // TILE_CHANNELS), -(-k // TILE_K)
    records = torch.empty(tiles, steps, RECORD_BYTES, dtype=torch.uint8)
    low = torch.empty(tiles * TILE_CHANNELS, dtype=torch.uint8)
    count = torch.empty(tiles * TILE_CHANNELS, dtype=torch.int64)
    scratch = _Scratch(min(n, TILE_CHANNELS) * k)

    def one(tile: int) -> tuple[torch.Tensor, torch.Tensor]:
        first = tile * TILE_CHANNELS
        found = codec.w12_pack_tile(
            _row(bits, first),
            min(TILE_CHANNELS, n - first),
            k,
            _row(records, tile),
            _row(low, first),
            _row(count, first),
            scratch.column.data_ptr(),
            scratch.pattern.data_ptr(),
        )
        return scratch.column[:found].clone(), scratch.pattern[:found].clone()

    lists = _each(one, tiles, threads)
    return records, low, count, torch.cat([c for c, _ in lists]), torch.cat([p for _, p in lists])


def checks(bits: torch.Tensor) -> torch.Tensor:
    """CRC-32 of every row's bytes of contiguous int16 `[N, K]`, int32 with the bits of the unsigned value."""
    codec = _loaded()
    assert codec is not None
    out = torch.empty(bits.shape[0], dtype=torch.int32)
    codec.w12_checks(bits.data_ptr(), bits.shape[0], bits.shape[1] * bits.element_size(), out.data_ptr())
    return out


def unpack(records: torch.Tensor, low: torch.Tensor, n: int, k: int, threads: int) -> torch.Tensor:
    """Records `[tiles, steps, 12288]` and windows to int16 patterns `[N, K]`; escapes are still code 0."""
    codec = _loaded()
    assert codec is not None
    out = torch.empty(n, k, dtype=torch.int16)
    records, low = records.contiguous(), low.contiguous()

    def one(tile: int) -> None:
        first = tile * TILE_CHANNELS
        rows = min(TILE_CHANNELS, n - first)
        codec.w12_unpack_tile(_row(records, tile), _row(low, first), rows, k, _row(out, first))

    _each(one, records.shape[0], threads)
    return out
