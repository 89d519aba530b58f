"""Forms of the commit beside each other, on a GPU: `python bench_commit.py --out FILE`.

A form is a change of `commit.cuh` in a copy: when a block asks for states and how they are cached. The first is the
source itself, which won (README); all of them must give its bits, at every size.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import torch
from specpilot_kernels.gdn_tree import bench, native

Change = tuple[str, str]
READ, WRITTEN = "plus_zero(here[c * (K / 4) + leaf * S::LANES + lane % S::LANES])", "] = h[c][leaf];"
STREAMING: tuple[Change, ...] = (
    (READ, READ.replace("here[", "__ldcs(&here[").replace("LANES])", "LANES]))")),
    ("here[c * (K / 4) + leaf * S::LANES + lane % S::LANES] = h[c][leaf];",
     "__stcs(&here[c * (K / 4) + leaf * S::LANES + lane % S::LANES], h[c][leaf]);"),
)  # fmt: skip
"""States pass through the caches once."""
ASK, ARRIVED = "  if (p.ahead && threadIdx.x == 0) prefetch_ahead(p);\n", "  MARK(p, 1, MARKS);\n"
OWN_READS = "  const Room room = room_of(bytes, p.depth, K);\n"
AT_THE_START: tuple[Change, ...] = ((ASK + ARRIVED, ARRIVED), (OWN_READS, ASK + OWN_READS))
"""A later block's state is asked for beside the own one, not behind it."""


def staggered(cycles: int) -> tuple[Change, ...]:
    """The second and third block of every multiprocessor of an H200 start `cycles` and twice that later."""
    wait = f"""  const int place = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  if (place < 3 * 132) {{
    const long long until = clock64() + place / 132 * {cycles};
    while (clock64() < until) __nanosleep(200);
  }}
"""
    first = "  float4 h[S::OWN][S::LEAVES];\n"
    return ((first, wait + first),)


@dataclass(frozen=True)
class Form:
    """Changes of the source, and whether blocks ask for the states of later ones at all."""

    changes: tuple[Change, ...] = ()
    ahead: bool = False


FORMS = {
    "ahead after the own state": Form(ahead=True),
    "ahead at the start": Form(AT_THE_START, ahead=True),
    "nothing ahead": Form(),
    "staggered 3000": Form(staggered(3000)),
    "staggered 6000": Form(staggered(6000)),
    "staggered 10000": Form(staggered(10000)),
    "streaming": Form(STREAMING),
    "streaming, ahead after the own state": Form(STREAMING, ahead=True),
    "streaming, staggered 6000": Form((*STREAMING, *staggered(6000))),
    "staggered 4000, ahead after the own state": Form(staggered(4000), ahead=True),
    "all three, 4000": Form((*STREAMING, *staggered(4000)), ahead=True),
}
SIZES = ((1, 16), (1, 8), (1, 4), (8, 16), (24, 16))
"""Requests, and accepted rows."""


def source_of(form: Form) -> str:
    """`commit.cuh` in this form. Raises `ValueError` where a change does not find its place exactly once."""
    text = Path(__file__).with_name("commit.cuh").read_text(encoding="utf-8")
    for old, new in form.changes:
        if text.count(old) != 1:
            raise ValueError(f"commit.cuh has {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    return text


def build(folder: Path, number: int, form: Form, arch: str) -> Path:
    """The library of a form. Raises `CalledProcessError`."""
    own = folder / str(number)
    own.mkdir()
    for path in native.SOURCES:
        (own / path.name).write_bytes(path.read_bytes())
    (own / "commit.cuh").write_text(source_of(form), encoding="utf-8")
    *words, unit = native.command(arch, bench.SIZE[0])
    subprocess.run([*words, str(own / Path(unit).name), "-o", str(own / "form.so")], check=True, capture_output=True)
    return own / "form.so"


@contextmanager
def using(library: Path) -> Iterator[None]:
    """`native`'s calls are those of `library`."""
    os.environ["SPECPILOT_GDN_TREE_SO"] = str(library)
    native.functions.cache_clear()
    try:
        yield
    finally:
        del os.environ["SPECPILOT_GDN_TREE_SO"]
        native.functions.cache_clear()


def measured(libraries: dict[str, Path], requests: int, steps: int, repeats: int) -> dict[str, list[float]]:
    """Microseconds of every form for all layers. Raises `ValueError` where one gives other bits than the first."""
    from specpilot_kernels.gdn_tree import bench_native

    step = bench_native.step_at(requests, 32)
    path = torch.arange(16, device="cuda").expand(requests, 16).contiguous()
    lengths = torch.full((requests,), steps, dtype=torch.int32, device="cuda")
    graphs, before, first = {}, step.state.clone(), torch.empty_like(step.state)
    for name, library in libraries.items():
        call = partial(native.commit_layers, step.x, step.state, step.layers[0].slots, path, lengths, FORMS[name].ahead)
        with using(library):
            step.state.copy_(before)
            call()
            if not graphs:
                first.copy_(step.state)
            if not torch.equal(first.view(torch.int32), step.state.view(torch.int32)):
                raise ValueError(f"{name} gives other bits")
            graphs[name] = bench.graph_of([call])
    return bench.timed(graphs, repeats)


def origin() -> dict[str, object]:
    """What the figures are of."""
    source = Path(__file__).with_name("commit.cuh").read_bytes()
    return {
        "schema": "specpilot.kernel-bench/2",
        "created": datetime.now(timezone.utc).isoformat(),
        "environment": {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__},
        "layers": bench.LAYERS,
        "source_sha256": hashlib.sha256(source).hexdigest(),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    arch, found, body = native.arch_of(torch.device("cuda")), {}, origin()
    with TemporaryDirectory() as folder, ThreadPoolExecutor(len(FORMS)) as pool:
        built = [pool.submit(build, Path(folder), number, form, arch) for number, form in enumerate(FORMS.values())]
        libraries = {name: one.result() for name, one in zip(FORMS, built, strict=True)}
        for requests, steps in SIZES:
            samples = measured(libraries, requests, steps, options.repeats)
            medians = {name: round(statistics.median(values), 1) for name, values in samples.items()}
            print(f"commit, {requests} requests, {steps} rows, us of {bench.LAYERS} layers:", medians, flush=True)
            found[f"{requests}x{steps}"] = samples
            options.out.write_text(json.dumps({**body, "samples_us": found}) + "\n")


if __name__ == "__main__":
    main()
