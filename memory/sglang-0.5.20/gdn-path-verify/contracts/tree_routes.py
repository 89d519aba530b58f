"""Trees of rows beside stock's chains of the same rows, as they stand in the tree.

In Triton's interpreter (`TRITON_INTERPRET=1`, float32, since it gets BF16 wrong), else on a GPU in BF16.

Every row's path is run as a chain by stock's kernels. Prints how many numbers were compared and how many differ:
outputs of every row, states and windows of accepted paths and tracked prefixes, words and parents against loops.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "gdn-commit" / "contracts"))
import rooms

rooms.rooms()
from importlib import import_module  # noqa: E402

ON_CPU = os.environ.get("TRITON_INTERPRET") == "1"
KIND = torch.float32 if ON_CPU else torch.bfloat16
torch.set_default_device("cpu" if ON_CPU else "cuda")
LAYERS, REQUESTS, ROWS, STEPS = 2, 3, 7, 3
HEADS, VALUE_HEADS, WIDTH, HEIGHT, TAPS = 1, 2, 16, 32, 4
CHANNELS = 2 * HEADS * WIDTH + VALUE_HEADS * HEIGHT
SLOTS = 3 * REQUESTS + 1
recurrent = import_module("sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent")
convolution = import_module("sglang.kernels.ops.mamba.causal_conv1d_triton")
rows_of, trees = rooms.part("rows"), rooms.part("tree_rows")


def plain_range(*bounds: Any) -> range:
    """The interpreter makes no `range` of a tensor."""
    return range(*(int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds))


if ON_CPU:
    recurrent.range = plain_range  # type: ignore[attr-defined]


def layers() -> list[Any]:
    """Weights of every layer."""
    return [
        SimpleNamespace(
            A_log=torch.nn.Parameter(torch.randn(VALUE_HEADS)),
            dt_bias=torch.nn.Parameter(torch.randn(VALUE_HEADS).to(KIND)),
            conv_weights=torch.randn(CHANNELS, TAPS).to(KIND),
            bias=torch.randn(CHANNELS).to(KIND),
            activation="silu",
            num_k_heads=HEADS,
            num_v_heads=VALUE_HEADS,
            head_k_dim=WIDTH,
            head_v_dim=HEIGHT,
        )
        for _ in range(LAYERS)
    ]


def chain(layer: Any, raw: Any, a: Any, b: Any, state: Any, window: Any) -> tuple[Any, Any, Any]:
    """Stock on d rows: outputs `[d, HV, V]`, states `[d, HV, V, K]` and windows `[d, channels, 3]` after each."""
    depth = len(raw)
    whole = torch.zeros(1, CHANNELS, depth + TAPS - 2, dtype=KIND)
    windows = whole.as_strided((1, depth, CHANNELS, TAPS - 1), (whole.stride(0), 1, whole.stride(1), 1))
    slot = torch.zeros(1, dtype=torch.int32)
    mixed = convolution.causal_conv1d_update(
        raw[None].transpose(1, 2), window[None].clone(), layer.conv_weights, layer.bias, "silu",
        conv_state_indices=slot, intermediate_conv_window=windows, intermediate_state_indices=slot,
    )  # fmt: skip
    q, k, v = mixed.transpose(1, 2)[0].split([HEADS * WIDTH, HEADS * WIDTH, VALUE_HEADS * HEIGHT], -1)
    states = torch.zeros(1, depth, VALUE_HEADS, HEIGHT, WIDTH)
    out = recurrent.fused_sigmoid_gating_delta_rule_update(
        A_log=layer.A_log, a=a, dt_bias=layer.dt_bias, softplus_beta=1.0, softplus_threshold=20.0,
        q=q.view(1, -1, HEADS, WIDTH), k=k.view(1, -1, HEADS, WIDTH), v=v.view(1, -1, VALUE_HEADS, HEIGHT), b=b,
        initial_state_source=state[None].clone(), initial_state_indices=slot, use_qk_l2norm_in_kernel=True,
        disable_state_update=True, cu_seqlens=torch.tensor([0, depth], dtype=torch.int32),
        intermediate_states_buffer=states, intermediate_state_indices=slot, cache_steps=depth,
    )  # fmt: skip
    return out[0], states[0], windows[0]


def path_of(parents: list[int], row: int) -> list[int]:
    """Rows from the anchor down to `row`."""
    return ([] if parents[row] < 0 else path_of(parents, parents[row])) + [row]


class Count:
    """Numbers compared, and those whose bits differ."""

    def __init__(self) -> None:
        self.compared = self.wrong = 0

    def __call__(self, one: torch.Tensor, two: torch.Tensor) -> None:
        kind = {torch.float32: torch.int32, torch.bfloat16: torch.int16}.get(one.dtype, one.dtype)
        assert one.shape == two.shape
        self.compared += one.numel()
        self.wrong += int((one.contiguous().view(kind) != two.contiguous().view(kind)).sum())


def planted(kept: Any, generator: torch.Generator, chains: bool, count: Count) -> list[list[int]]:
    """Trees of a step, given as a drafter says them; the parents of their rows by hand."""
    nodes = torch.full((REQUESTS, ROWS - 1), -2, dtype=torch.int32)
    for request in range(REQUESTS):
        for node in range(ROWS - 1 if chains else ROWS - 1 - request):  # the rest of the places holds no node
            nodes[request, node] = node - 1 if chains else int(torch.randint(-1, max(node, 1), (), generator=generator))
            nodes[request, node].clamp_(max=node - 1)
    kept.plant(nodes)
    parents = [[-1, *(max(node + 1, -1) for node in row)] for row in nodes.tolist()]
    words = [[sum(1 << up for up in path_of(row, i)) for i in range(ROWS)] for row in parents]
    count(kept.parents[:REQUESTS], torch.tensor(parents, dtype=torch.int32))
    count(kept.words[:REQUESTS], torch.tensor(words, dtype=torch.int64))
    return parents


def main() -> None:
    torch.manual_seed(0)
    sizes = rows_of.Sizes(LAYERS, REQUESTS + 1, ROWS, HEADS, VALUE_HEADS, WIDTH, HEIGHT)
    kept, weights, count = trees.TreeRows(sizes, "triton", torch.get_default_device()), layers(), Count()
    for name in ("mixed", "a", "b", "raw"):
        setattr(kept, name, getattr(kept, name).to(KIND))
    kept.verifier = "path"
    kept.attach(weights)
    caches = SimpleNamespace(
        temporal=torch.randn(LAYERS, SLOTS, VALUE_HEADS, HEIGHT, WIDTH),
        conv=[torch.randn(LAYERS, SLOTS, CHANNELS, 3).to(KIND)],
    )
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    slots = torch.tensor([2, -1, 3], dtype=torch.int32)  # the second is padding
    for number in range(STEPS):
        parents = planted(kept, generator, number == 0, count)
        size = {"raw": CHANNELS, "a": VALUE_HEADS, "b": VALUE_HEADS}
        step = {n: torch.randn(LAYERS, REQUESTS * ROWS, c, generator=generator).to(KIND) for n, c in size.items()}
        states, windows = caches.temporal.clone(), caches.conv[0].clone()
        outputs = []
        for place, layer in enumerate(weights):
            given = kept.layer(place, REQUESTS, ROWS)
            raw, a, b = (step[name][place] for name in size)
            kept.convolved(place, given, raw, a, b, caches.conv[0][place], slots, layer)
            outputs.append(kept.recurrent(place, given, caches.temporal[place], slots, layer)[0])
        count(caches.temporal, states)
        count(caches.conv[0], windows)
        chosen = [int(torch.randint(0, ROWS, (), generator=generator)) for _ in range(REQUESTS)]
        paths = [path_of(parents[request], chosen[request]) for request in range(REQUESTS)]
        last = torch.tensor([len(path) - 1 for path in paths])
        track_last = torch.tensor([-1 if number == 1 else int(last[0]) // 2, -1, int(last[2])])
        track_slots = torch.arange(REQUESTS) + REQUESTS + 1
        for request in (0, 2):
            slot, mine = int(slots[request]), slice(request * ROWS, (request + 1) * ROWS)
            for place, layer in enumerate(weights):
                raw, a, b = (step[name][place, mine] for name in size)
                before = caches.temporal[place, slot], caches.conv[0][place, slot]
                for row in range(ROWS):
                    path = path_of(parents[request], row)
                    out, after, window = chain(layer, raw[path], a[path], b[path], *before)
                    count(outputs[place][mine][row], out[-1])
                    if row == chosen[request]:
                        states[place, slot], windows[place, slot] = after[-1], window[-1]
                        tracked = int(track_last[request])
                        if tracked >= 0:
                            into = int(track_slots[request])
                            states[place, into], windows[place, into] = after[tracked], window[tracked]
        wide = torch.tensor([path + [0] * (ROWS - len(path)) for path in paths])
        kept.commit_verified(caches, slots, last, track_slots, track_last, wide)
        count(caches.temporal, states)
        count(caches.conv[0], windows)
    print(count.compared, "numbers,", count.wrong, "differ")


if __name__ == "__main__":
    main()
