"""The entry's verify and commit beside stock's, in the patched engine on this GPU: every output and state, bit for bit.

Run by `h200.py` in the engine's own interpreter and import path: `check.py OUT [VARIANT ...]`. Both routes start from
the same pools and take the same rows and the same drawn acceptances for several steps, padded requests and tracked
prefixes among them. One line a fact; exit code 1 where a bit differs. Then times of 48 layers, each as one CUDA graph,
replayed in turn.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent import fused_sigmoid_gating_delta_rule_update
from sglang.kernels.ops.mamba.causal_conv1d_triton import causal_conv1d_update
from sglang.kernels.ops.mamba.mamba_state_scatter_triton import scatter_mamba_states_after_mtp_verify
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateDType, Mamba2StateShape
from sglang.srt.mem_cache.memory_pool import MambaPool

HEADS, VALUE_HEADS, WIDTH, TAPS = 16, 48, 128, 4  # Qwen3.8-27B
CHANNELS = (2 * HEADS + VALUE_HEADS) * WIDTH
LAYERS, STEPS = 3, 5
REPEATS = 30
VARIANTS = tuple(sys.argv[2:]) or ("cuda", "triton")
VERIFIES = {"stock": "stock", "triton": "without states", "path": "along paths"}
AT_ONCE = {"wy-triton": "triton", "wy-cuda": "cuda"}  # gdn-wy-verify: other orders of sums, within a derived bound
VERIFIES |= {name: f"at once, {word}" for name, word in AT_ONCE.items()}
BEGIN = time.monotonic()


def say(*words: object) -> None:
    """One line."""
    print("check:", f"[{time.monotonic() - BEGIN:5.1f} s]", *words, flush=True)


@dataclass(frozen=True)
class Step:
    """One verify step's drawn inputs, of all layers: raw rows `[L, B*N, channels]`, gates `[L, B*N, HV]`."""

    raw: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor


@dataclass
class Arm:
    """One route's pool, weights and slots."""

    pool: MambaPool
    layers: list[Any]
    slots: torch.Tensor
    rows: int
    outputs: list[torch.Tensor]

    @property
    def caches(self) -> Any:
        return self.pool.mamba_cache

    def verify(self, step: Step) -> None:
        """Convolution and recurrence of every layer, as `GDNAttnBackend.forward_extend` calls them."""
        for place, layer in enumerate(self.layers):
            self.outputs[place].copy_(self._layer(place, layer, step))

    def _layer(self, place: int, layer: Any, step: Step) -> torch.Tensor:
        requests = len(self.slots)
        own, kept_rows = self.caches.at_layer_idx(place), self.pool.gdn_rows
        kept = None if kept_rows is None else kept_rows.layer(place, requests, self.rows)
        if getattr(kept_rows, "trees", False):
            rows = (step.raw[place], step.a[place], step.b[place])
            kept_rows.convolved(place, kept, *rows, own.conv[0], self.slots, layer)
            return kept_rows.recurrent(place, kept, own.temporal, self.slots, layer)
        owned = torch.arange(requests, dtype=torch.int32, device="cuda")
        mixed = causal_conv1d_update(
            step.raw[place].view(requests, self.rows, CHANNELS).transpose(1, 2),
            own.conv[0],
            layer.conv_weights,
            None,
            "silu",
            conv_state_indices=self.slots,
            intermediate_conv_window=own.intermediate_conv_window[0],
            intermediate_state_indices=owned,
            **({} if kept is None else {"out": kept.mixed.transpose(1, 2)}),
        )
        tokens = requests * self.rows
        keys = HEADS * WIDTH
        q, k, v = mixed.transpose(1, 2).view(tokens, -1).split([keys, keys, VALUE_HEADS * WIDTH], -1)
        stored = {"intermediate_states_buffer": own.intermediate_ssm, "intermediate_state_indices": owned}
        return fused_sigmoid_gating_delta_rule_update(
            A_log=layer.A_log,
            dt_bias=layer.dt_bias,
            q=q.view(1, tokens, HEADS, WIDTH),
            k=k.view(1, tokens, HEADS, WIDTH),
            v=v.view(1, tokens, VALUE_HEADS, WIDTH),
            a=step.a[place],
            b=step.b[place],
            initial_state_source=own.temporal,
            initial_state_indices=self.slots,
            cu_seqlens=torch.arange(0, tokens + 1, self.rows, dtype=torch.int32, device="cuda"),
            use_qk_l2norm_in_kernel=True,
            softplus_beta=1.0,
            softplus_threshold=20.0,
            disable_state_update=True,
            **(stored | {"cache_steps": self.rows} if kept is None else {"kept_a": kept.a, "kept_b": kept.b}),
        )

    def commit(self, last: torch.Tensor, track: tuple[torch.Tensor, torch.Tensor] | None) -> None:
        """As `HybridLinearAttnBackend.update_mamba_state_after_mtp_verify` does."""
        slots, steps = track or (None, None)
        if self.pool.gdn_rows is not None:
            self.pool.gdn_rows.commit_verified(self.caches, self.slots, last, slots, steps)
        if not getattr(self.pool.gdn_rows, "trees", False):
            scatter_mamba_states_after_mtp_verify(self.caches, self.slots, last, slots, steps)


def arm(requests: int, rows: int, layers: int, variant: str, seed: int) -> Arm:
    """`variant`: stock, triton, cuda, path or one of AT_ONCE. Every arm of a seed starts with the same bits."""
    trees = variant == "path" or variant in AT_ONCE
    commit = "cuda" if trees else {"stock": "off"}.get(variant, variant)
    os.environ |= {"SGLANG_GDN_COMMIT": commit, "SGLANG_GDN_TREE": "path" if trees else "off"}
    os.environ["SGLANG_GDN_WY"] = AT_ONCE.get(variant, "off")
    torch.manual_seed(seed)
    shape = Mamba2StateShape.create(
        tp_world_size=1,
        intermediate_size=VALUE_HEADS * WIDTH,
        n_groups=HEADS,
        num_heads=VALUE_HEADS,
        head_dim=WIDTH,
        state_size=WIDTH,
        conv_kernel=TAPS,
    )
    dtypes = Mamba2StateDType(conv=torch.bfloat16, temporal=torch.float32)
    pool = MambaPool(
        size=3 * requests + 1,
        spec_state_size=requests,
        cache_params=Mamba2CacheParams(shape=shape, layers=list(range(layers)), dtype=dtypes),
        mamba_layer_ids=list(range(layers)),
        device="cuda",
        speculative_num_draft_tokens=rows,
        speculative_eagle_topk=1,
        keep_gdn_rows=variant != "stock",
    )
    pool.mamba_cache.temporal.normal_().mul_(0.3)
    pool.mamba_cache.conv[0].normal_()
    drawn = [
        SimpleNamespace(
            A_log=torch.nn.Parameter(torch.randn(VALUE_HEADS, device="cuda") - 2),
            dt_bias=torch.nn.Parameter(torch.randn(VALUE_HEADS, device="cuda").bfloat16()),
            conv_weights=torch.randn(CHANNELS, TAPS, device="cuda").bfloat16() * 0.5,
            bias=None,
            activation="silu",
            num_k_heads=HEADS,
            num_v_heads=VALUE_HEADS,
            head_k_dim=WIDTH,
            head_v_dim=WIDTH,
        )
        for _ in range(layers)
    ]
    slots = torch.randperm(requests, device="cuda").int() + 1
    if pool.gdn_rows is not None:
        pool.gdn_rows.attach(drawn)
        pool.gdn_rows.make_ready(pool.mamba_cache.temporal)
    outputs = [torch.zeros(1, requests * rows, VALUE_HEADS, WIDTH, dtype=torch.bfloat16, device="cuda") for _ in drawn]
    return Arm(pool, drawn, slots, rows, outputs)


def drawn_step(requests: int, rows: int, layers: int, seed: int) -> Step:
    """Rows of the model's size of numbers; some keys twice the same, the worst case for the delta rule."""
    torch.manual_seed(seed)

    def rows_of(columns: int) -> torch.Tensor:
        return torch.randn(layers, requests * rows, columns, device="cuda").bfloat16()

    raw = rows_of(CHANNELS)
    raw[:, 1::4] = raw[:, ::4][:, : raw[:, 1::4].shape[1]]
    return Step(raw, rows_of(VALUE_HEADS), rows_of(VALUE_HEADS))


def differing(one: torch.Tensor, two: torch.Tensor) -> int:
    """Numbers whose bits differ."""
    kind = torch.int32 if one.dtype == torch.float32 else torch.int16
    return int((one.view(kind) != two.view(kind)).sum())


def units_apart(one: torch.Tensor, two: torch.Tensor) -> int:
    """BF16 numbers that are further apart than neighbours; both zeros are one number."""
    bits = [t.contiguous().view(torch.int16).int() for t in (one, two)]
    one, two = (torch.where(b < 0, -(b & 0x7FFF), b) for b in bits)
    return int(((one - two).abs() > 1).sum())


def compared(requests: int, rows: int, variant: str, *, padded: int = 0, tracked: bool = False) -> dict[str, int]:
    """Differing numbers after some steps on both routes: outputs, states, windows, states of tracked prefixes."""
    seed = requests * 100 + rows
    arms = [arm(requests, rows, LAYERS, name, seed) for name in ("stock", variant)]
    graph = None
    fixed = drawn_step(requests, rows, LAYERS, 0)
    found = {"outputs": 0, "further than a unit": 0, "states": 0, "windows": 0, "steps": STEPS, "numbers": 0}
    for one in arms:
        if padded:
            one.slots[-padded:] = -1
    real = requests - padded
    for number in range(STEPS):
        drawn = drawn_step(requests, rows, LAYERS, seed + number)
        for name in ("raw", "a", "b"):
            getattr(fixed, name).copy_(getattr(drawn, name))
        arms[0].verify(fixed)
        if graph is None:  # the first step runs eagerly, the rest replays what the second captured
            arms[1].verify(fixed)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                arms[1].verify(fixed)
        else:
            graph.replay()
        torch.cuda.synchronize()
        tokens = real * rows
        for one, two in zip(arms[0].outputs, arms[1].outputs, strict=True):
            found["outputs"] += differing(one[:, :tokens], two[:, :tokens])
            found["further than a unit"] += units_apart(one[:, :tokens], two[:, :tokens])
            found["numbers"] += one[:, :tokens].numel()
        last = torch.randint(0, rows, (requests,), device="cuda")
        track = None
        if tracked:
            places = torch.where(torch.rand(requests, device="cuda") < 0.5, last, -1)
            places[real:] = -1
            track = (torch.arange(requests, device="cuda") + requests + 1 + number % 2 * requests, places)
        for one in arms:
            one.commit(last, track)
        torch.cuda.synchronize()
        caches = [one.caches for one in arms]
        found["states"] += differing(caches[0].temporal, caches[1].temporal)
        found["windows"] += differing(caches[0].conv[0], caches[1].conv[0])
        found["numbers"] += caches[0].temporal.numel() + caches[0].conv[0].numel()
    return found


def graph_of(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """One call as a graph, after two plain ones."""
    for _ in range(2):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def timed(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median microseconds of each, in turn."""
    graphs = {name: graph_of(call) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(REPEATS):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            if number >= 3:
                samples[name].append(begin.elapsed_time(end) * 1e3)
    return {name: round(statistics.median(values), 1) for name, values in samples.items()}


def times(requests: int, rows: int, layers: int = 48) -> dict[str, float]:
    """Verify and commit of 48 layers, by stock and by each variant; half of the rows accepted."""
    calls: dict[str, Callable[[], object]] = {}
    step = drawn_step(requests, rows, layers, 1)
    last = torch.full((requests,), rows // 2 - 1, device="cuda")
    for name in ("stock", *VARIANTS):
        try:
            one = arm(requests, rows, layers, name, 1)
        except Exception as error:
            say(f"FAILED to prepare {name} for {requests} x {rows}: {error!r}"[:400])
            continue
        if name in VERIFIES:
            calls[f"verify {VERIFIES[name]}"] = lambda one=one: one.verify(step)
        calls[f"commit {name}"] = lambda one=one: one.commit(last, None)
    found = timed(calls)
    del calls
    torch.cuda.empty_cache()
    return found


def main() -> int:
    out = Path(sys.argv[1])
    body: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "bits": [], "times_us": []}
    wrong = 0
    for variant in VARIANTS:
        for requests, rows, padded, tracked in ((1, 8, 0, False), (3, 8, 1, True), (24, 8, 0, True), (2, 16, 0, False)):
            case = {"variant": variant, "requests": requests, "rows": rows, "padded": padded, "tracked": tracked}
            try:
                found = compared(requests, rows, variant, padded=padded, tracked=tracked)
            except Exception as error:
                found = {"failed": repr(error)[:600]}
                wrong += 1
            else:
                wrong += bool((found["outputs"] and variant not in AT_ONCE) or found["states"] or found["windows"])
            say("BITS", json.dumps(case | found))
            body["bits"].append(case | found)
            out.write_text(json.dumps(body))
            torch.cuda.empty_cache()
    say("RESULT bits:", "all equal" if not wrong else f"{wrong} cases differ or failed")
    for requests, rows in ((1, 8), (24, 8), (1, 32)):
        try:
            found_times = times(requests, rows)
        except Exception as error:
            say(f"FAILED times of {requests}: {error!r}"[:600])
            continue
        say("RESULT us of 48 layers,", requests, "requests x", rows, "rows:", json.dumps(found_times))
        body["times_us"].append({"requests": requests, "rows": rows, **found_times})
        out.write_text(json.dumps(body))
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
