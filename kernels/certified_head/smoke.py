"""One call of every compiled shape on a small head, each said as it ends, and what is wrong where one is.

`bench.py` runs it in a process of its own, which it can end where a kernel hangs: the last word names the shape.

python kernels/certified_head/smoke.py [skipped ...]
"""

import sys
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from specpilot_kernels.certified_head import cases, layout, native, op, plan

SIZE = (40000, 1032)  # five units a block on 132 multiprocessors; nine steps, the last one padded


def digits_expected(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`[M, K]` int64 digits (both in one number) and their unit `[M]`, as `rows.cuh` says."""
    exponent = torch.frexp(x.float().abs().amax(1)).exponent.clamp(min=-99) - 15
    unit = torch.exp2(exponent.double())
    return (x.double() / unit[:, None]).round().clamp(-32639, 32639).long(), unit


def diagnosis(x: torch.Tensor, head: op.Head, launch: native.Launch) -> str:
    """Which of the launches parts first from what torch computes: digits, row constants, best bound, lists."""
    _, sizes, scratch = native._launched(x, head, launch)
    torch.cuda.synchronize() if x.is_cuda else None
    columns, m = sizes.columns, sizes.m

    def buffer(name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        first = sizes.offsets[name]
        return scratch[first : first + count * dtype.itemsize].view(dtype)

    stored = buffer("digits", sizes.steps * columns * 128, torch.int8).view(sizes.steps, columns, 8, 16)
    place = torch.arange(8, device=x.device)[None] ^ (torch.arange(columns, device=x.device) % 8)[:, None]
    plain = stored.gather(2, place[None, :, :, None].expand(sizes.steps, -1, -1, 16)).transpose(0, 1)
    plain = plain.reshape(columns, -1).long()[: 2 * m, : sizes.k]
    expected, unit = digits_expected(x)
    found = 256 * plain[0::2] + plain[1::2]
    rows = buffer("row", 3 * columns // 2, torch.float32).view(3, -1)[:, :m]
    said = [f"digits wrong {int((found != expected).sum())}", f"units wrong {int((rows[0] != unit).sum())}"]
    about = found.double() @ layout.untile(head.quantised, sizes.k)[: sizes.tokens].double().T
    about = about * head.scale.double() * unit[:, None]
    low = about - head.error.double() * rows[1, :, None] - head.length.double() * rows[2, :, None]
    key = buffer("best", columns // 2, torch.int64)[:m]
    word = ((key >> 32) ^ (1 << 31)).int()
    bound = torch.where(word < 0, word ^ 0x7FFFFFFF, word).view(torch.float32).double()
    said.append(f"best bound / torch's {(bound / low.amax(1)).tolist()[:4]}")
    said.append(f"its token {(0xFFFFFFFF - (key & 0xFFFFFFFF)).tolist()[:4]}, torch's {low.argmax(1).tolist()[:4]}")
    counts = buffer("counts", sizes.blocks * m, torch.int32)
    return ", ".join([*said, f"listed {int(counts.sum())} in {sizes.blocks} blocks"])


def main(skipped: list[str], device: str = "cuda") -> int:
    """Every shape at the most rows it takes, at one row less, and without early launches."""
    generator = torch.Generator(device=device).manual_seed(3)
    size = SIZE if device == "cuda" else (200, 136)
    weight = cases.drawn_head(*size, generator)
    head, wrong = op.prepare(weight, tiles=True), 0
    for variant in native.variants(torch.device(device, 0) if device == "cuda" else torch.device("cpu")):
        name = f"{variant.name}/{variant.columns}"
        if name in skipped or "_" in variant.name:
            continue
        print(name, end=" ", flush=True)
        bad = 0
        for m, ahead in ((variant.columns // 2, plan.EARLY), (max(variant.columns // 2 - 1, 1), 0)):
            x = cases.drawn_rows(weight, m, generator)
            launch = native.Launch(variant.name, ahead=ahead)
            scores = torch.nn.functional.linear(x.float(), weight.float())
            own = scores.gather(1, native.argmax(x, head, launch)[:, None])[:, 0]
            bad += int((scores.amax(1) - own > scores.amax(1).abs() * 2.0**-7 + 1e-6).sum())
        print("wrong" if bad else "ok", flush=True)
        if bad:
            print("#", diagnosis(x, head, launch), flush=True)
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
