"""Verification of all paths at once beside the walk along each, as both stand in the tree, on every kind of case.

In Triton's interpreter (`TRITON_INTERPRET=1`, float32, since it gets BF16 wrong; outputs are rounded to BF16 here) or
on a GPU in BF16, there the CUDA kernels too. Cases, float64 reference and error bound E are those of
`kernels/gdn_tree/cases.py`: random, badly conditioned, long-lived, forgetful and large states, states that 1,024 tokens
leave, on five kinds of trees.

Both outputs are within E of the exact one before they are rounded. Rounding never reverses an order and moves a number
by at most half a unit, so where 2 E is below a unit of BF16 they are the same or neighbours: that is held to one unit.
Where 2 E is larger (small sums of large terms) they are held to 2 E and their two roundings. How many outputs are
further apart than a unit is printed for all of them.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "gdn-commit" / "contracts"), str(HERE.parents[3] / "kernels" / "_testing")]
import rooms  # noqa: E402

ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"
if ON_CPU:
    rooms.rooms()  # on a GPU the CUDA kernels are compiled by the whole engine's loader
from mount import mount  # noqa: E402

mount()
from specpilot_kernels.gdn_tree import cases, reference  # noqa: E402

DEVICE, KIND = ("cpu", torch.float32) if ON_CPU else ("cuda", torch.bfloat16)
if ON_CPU:
    SIZES = [(2, 9, (1, 2), (32, 16)), (1, 17, (1, 3), (16, 16))]
else:  # of one key width, since each is compiled anew
    SIZES = [(1, 32, (16, 48), (128, 128)), (2, 16, (16, 48), (128, 128)), (24, 8, (16, 48), (128, 128))]
    SIZES += [(3, 63, (4, 12), (128, 128)), (1, 48, (4, 8), (128, 64))]
COUNTED = ("numbers", "equal", "sure", "wrong", "other bits again", "units above one")
ROUTES = {"path": ("path", "off"), "wy triton": ("path", "triton")}
if not ON_CPU:
    ROUTES |= {"cuda": ("cuda", "off"), "wy cuda": ("path", "cuda")}
if ON_CPU:
    rows_of, trees = rooms.part("rows"), rooms.part("tree_rows")
else:
    from sglang.srt.layers.attention.linear.gdn_commit import rows as rows_of
    from sglang.srt.layers.attention.linear.gdn_commit import tree_rows as trees


def verified(case: Any, route: str) -> torch.Tensor:
    """`[B, N, HV, V]`: what the entry's rows give, planted and verified as the backend does; states must not change."""
    os.environ |= {"SGLANG_GDN_COMMIT": "triton"} | dict(
        zip(("SGLANG_GDN_TREE", "SGLANG_GDN_WY"), ROUTES[route], strict=True)
    )
    x = case.x
    requests, rows, heads, width = x.k.shape
    value_heads, height = x.v.shape[2:]
    sizes = rows_of.Sizes(1, requests, rows, heads, value_heads, width, height)
    kept = trees.TreeRows(sizes, "triton", DEVICE, KIND)
    kept.mixed[0] = torch.cat([t.flatten(2) for t in (x.q, x.k, x.v)], -1).flatten(0, 1)
    kept.a[0], kept.b[0] = x.a.flatten(0, 1), x.b.flatten(0, 1)
    kept.a_log, kept.dt_bias = x.a_log[None].contiguous(), x.dt_bias[None].contiguous()
    if rows > 1:
        kept.plant((case.parents[:, 1:] - 1).int())
    state = case.state[None].clone()
    if kept.native_verify:
        kept.make_ready(state)
    layer = type("Layer", (), {"A_log": x.a_log, "dt_bias": x.dt_bias})
    found = kept.recurrent(0, kept.layer(0, requests, rows), state[0], case.slots, layer)
    assert torch.equal(state[0], case.state), "verification wrote a state"
    return found.view(requests, rows, value_heads, height)


def places(x: torch.Tensor) -> torch.Tensor:
    """BF16 numbers as integers in their order: neighbours differ by one, both zeros are one number."""
    bits = x.contiguous().view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def unit_of(x: torch.Tensor) -> torch.Tensor:
    """Distance of BF16 numbers (8 significant bits) in x's binade, float64."""
    exponent = torch.frexp(x.double().abs().clamp(min=2.0**-126)).exponent  # x is from 2^(exponent - 1) on
    return 2.0 ** (exponent.double() - 8)


def main() -> int:
    total: dict[str, dict[str, float]] = {}
    every = list(itertools.product(SIZES[:1], cases.TREES, cases.VALUES))
    every += list(itertools.product(SIZES[1:], cases.TREES, cases.VALUES))[:: 5 if ON_CPU else 3]
    for number, (size, tree, values) in enumerate(every):
        case = cases.draw(tree, values, *size, seed=1000 + number, device=DEVICE)
        exact = reference.verify(case.x.to(torch.float64), case.before, case.parents, case.scale)
        bound = cases.error_bound(case)
        walked = verified(case, "path")
        for route in list(ROUTES)[1:]:
            runs = [verified(case, route) for _ in range(2)]
            one, two = (t.bfloat16() for t in (walked, runs[0]))
            apart = (places(one) - places(two)).abs()
            sure = 2 * bound < unit_of(exact) / 2  # an output may lie in the binade below
            allowed = 2 * bound + 2 * 2.0**-8 * (exact.abs() + bound) + 2.0**-133
            said = total.setdefault(route, dict.fromkeys(COUNTED, 0))
            said["numbers"] += exact.numel()
            said["sure"] += int(sure.sum())
            said["equal"] += int((apart == 0).sum())
            said["wrong"] += int((cases.worst(walked, exact, bound) > 1) + (cases.worst(runs[0], exact, bound) > 1))
            said["wrong"] += int((sure & (apart > 1)).sum() + ((one.double() - two.double()).abs() > allowed).sum())
            said["other bits again"] += int((places(runs[0].bfloat16()) != places(runs[1].bfloat16())).sum())
            said["units above one"] += int((apart > 1).sum())
    for route, said in total.items():
        print("wy:", route, json.dumps(said))
    return int(any(said["wrong"] or said["other bits again"] for said in total.values()))


if __name__ == "__main__":
    raise SystemExit(main())
