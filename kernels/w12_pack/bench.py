"""`specpilot w12 pack` from end to end: a safetensors file in, one out, wall clock, CPU seconds and peak memory.

    python kernels/w12_pack/bench.py [--folder /dev/shm] [--gigabytes 2] [--repeats 5] [--command pack|verify|audit]

Makes a synthetic file of Gaussian matrices in `--folder` (a tmpfs, or a disk: then the source comes from the page
cache), runs the command on it as a user does, and removes everything. The interpreter's start (about a second, most of
it torch) is in the time of a run and shown apart by a run on a file of one small matrix.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

SHAPES = ((34816, 5120), (5120, 17408), (14336, 5120), (5120, 6144))  # of a 27B model, in turn
HEAD = (8192, 5120)  # a tensor that is copied as it is
BLOCK = 64 * 2**20


@dataclass
class Run:
    """One run of the command."""

    wall_s: float
    cpu_s: float
    peak_bytes: int


def names(size: float) -> dict[str, tuple[int, int]]:
    """Tensors of together at least `size` bytes."""
    found: dict[str, tuple[int, int]] = {}
    total = 0
    while total < size:
        shape = SHAPES[len(found) % len(SHAPES)]
        found[f"model.layers.{len(found)}.proj.weight"] = shape
        total += 2 * shape[0] * shape[1]
    return found | ({"lm_head.weight": HEAD} if size > 1e9 else {})


def write(path: Path, tensors: dict[str, tuple[int, int]]) -> int:
    """A safetensors file; its data repeat one block of Gaussian weights. Returns its bytes of BF16."""
    block = (torch.randn(BLOCK // 2, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    data = memoryview(block.view(torch.uint8).numpy())
    header, at = {}, 0
    for name, (rows, columns) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + 2 * rows * columns]}
        at += 2 * rows * columns
    text = json.dumps(header).encode()
    path.parent.mkdir()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, at, BLOCK):
            file.write(data[: min(BLOCK, at - start)])
    return at


def run(arguments: list[str]) -> Run:
    """The command line in a process of its own."""
    begin = time.perf_counter()
    argv = [sys.executable, "-m", "specpilot_cli", "w12", *arguments]
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - begin
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.stderr is not None
    said = child.stderr.read().decode()
    if child.returncode:
        raise SystemExit(f"exit {child.returncode}: {said}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def measured(command: str, source: Path, out: Path, packed: Path) -> Run:
    """One run; what `pack` wrote is removed first, so that every run writes new pages."""
    if command == "pack":
        shutil.rmtree(out, ignore_errors=True)
        return run(["pack", str(source), "-o", str(out)])
    return run(["verify", str(packed), "-o", "-"] if command == "verify" else ["audit", str(source), "-o", "-"])


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="/dev/shm" if Path("/dev/shm").is_dir() else None)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--command", choices=("pack", "verify", "audit"), default="pack")
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = write(folder / "source" / "model.safetensors", names(options.gigabytes * 1e9))
        write(folder / "small" / "model.safetensors", {"w": (128, 64)})
        if options.command == "verify":
            for each in ("source", "small"):
                run(["pack", str(folder / each), "-o", str(folder / f"{each}-packed")])
        cores = len(os.sched_getaffinity(0))
        print(f"{options.command}: {size / 1e9:.2f} GB of BF16 in {folder.parent}, {cores} cores", flush=True)
        start = min(
            (measured(options.command, folder / "small", folder / "out", folder / "small-packed") for _ in range(3)),
            key=lambda r: r.cpu_s,
        )
        print(f"start alone: {start.wall_s:.2f} s wall, {start.cpu_s:.2f} s CPU")
        for _ in range(options.repeats):
            busy = os.getloadavg()[0]
            one = measured(options.command, folder / "source", folder / "out", folder / "source-packed")
            work, cpu = one.wall_s - start.wall_s, one.cpu_s - start.cpu_s
            print(
                f"{one.wall_s:.2f} s wall ({size / one.wall_s / 1e9:.2f} GB/s), {one.cpu_s:.2f} s CPU; "
                f"without the start {size / work / 1e9:.2f} GB/s, {size / cpu / 1e9:.2f} GB a CPU second; "
                f"peak {one.peak_bytes / 1e6:.0f} MB; load before {busy:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
