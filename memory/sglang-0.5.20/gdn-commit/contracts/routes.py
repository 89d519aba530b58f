"""Stock's verify and commit beside the entry's, both as they stand in the tree, in Triton's interpreter (float32).

Prints how many numbers were compared and how many differ: outputs, states and convolution windows after every step.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

LAYERS, REQUESTS, ROWS, STEPS = 2, 4, 5, 4
HEADS, VALUE_HEADS, WIDTH, HEIGHT, TAPS = 1, 2, 16, 64, 4
CHANNELS = 2 * HEADS * WIDTH + VALUE_HEADS * HEIGHT
SLOTS = 3 * REQUESTS + 1


sys.path.insert(0, str(Path(__file__).resolve().parent))
import rooms  # noqa: E402

rooms.rooms()
recurrent = import_module("sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent")
convolution = import_module("sglang.kernels.ops.mamba.causal_conv1d_triton")
rows_of = rooms.part("rows")


def plain_range(*bounds: Any) -> range:
    """The interpreter makes no `range` of a tensor."""
    return range(*(int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds))


recurrent.range = plain_range  # type: ignore[attr-defined]


def windows() -> torch.Tensor:
    """Stock's overlapping windows of a chain: `[layers, requests, rows, channels, taps - 1]`."""
    whole = torch.zeros(LAYERS, REQUESTS, CHANNELS, ROWS + TAPS - 2)
    strides = whole.stride()
    return whole.as_strided((*whole.shape[:2], ROWS, CHANNELS, TAPS - 1), (*strides[:2], 1, strides[2], 1))


def scattered(to: torch.Tensor, of: torch.Tensor, slots: torch.Tensor, steps: torch.Tensor) -> None:
    """Stock's copy of what a step stored; its kernel takes tensors of a GPU only."""
    for request, (slot, step) in enumerate(zip(slots.tolist(), steps.tolist(), strict=True)):
        if slot >= 0 and step >= 0:
            to[:, slot] = of[:, request, step]


class Route:
    """One pool and one way to verify and to commit."""

    def __init__(self, kept: Any) -> None:
        torch.manual_seed(0)
        snapshots = torch.zeros(LAYERS, REQUESTS, ROWS, VALUE_HEADS, HEIGHT, WIDTH)
        self.caches = SimpleNamespace(
            temporal=torch.randn(LAYERS, SLOTS, VALUE_HEADS, HEIGHT, WIDTH),
            conv=[torch.randn(LAYERS, SLOTS, CHANNELS, TAPS - 1)],
            intermediate_ssm=snapshots if kept is None else None,
            intermediate_conv_window=[windows()],
        )
        self.layers = [
            SimpleNamespace(
                A_log=torch.nn.Parameter(torch.randn(VALUE_HEADS)),
                dt_bias=torch.nn.Parameter(torch.randn(VALUE_HEADS)),
                weights=torch.randn(CHANNELS, TAPS),
                num_k_heads=HEADS,
                num_v_heads=VALUE_HEADS,
                head_k_dim=WIDTH,
                head_v_dim=HEIGHT,
            )
            for _ in range(LAYERS)
        ]
        self.kept = kept
        if kept is not None:
            kept.attach(self.layers)

    def verify(self, step: dict[str, torch.Tensor], slots: torch.Tensor) -> list[torch.Tensor]:
        """Outputs of every layer, as the backend calls its two kernels."""
        requests, found = len(slots), []
        owned = torch.arange(requests, dtype=torch.int32)
        for place, layer in enumerate(self.layers):
            kept = None if self.kept is None else self.kept.layer(place, requests, ROWS)
            mixed = convolution.causal_conv1d_update(
                step["raw"][place].view(requests, ROWS, CHANNELS).transpose(1, 2),
                self.caches.conv[0][place],
                layer.weights,
                None,
                "silu",
                conv_state_indices=slots,
                intermediate_conv_window=self.caches.intermediate_conv_window[0][place],
                intermediate_state_indices=owned,
                **({} if kept is None else {"out": kept.mixed.transpose(1, 2)}),
            )
            mixed = mixed.transpose(1, 2).view(requests * ROWS, -1)
            q, k, v = mixed.split([HEADS * WIDTH, HEADS * WIDTH, VALUE_HEADS * HEIGHT], -1)
            states = self.caches.intermediate_ssm
            stored: dict[str, Any] = {"kept_a": kept.a, "kept_b": kept.b} if kept else {}
            if states is not None:
                stored = {"intermediate_states_buffer": states[place], "intermediate_state_indices": owned}
                stored["cache_steps"] = ROWS
            found.append(
                recurrent.fused_sigmoid_gating_delta_rule_update(
                    A_log=layer.A_log,
                    a=step["a"][place],
                    dt_bias=layer.dt_bias,
                    softplus_beta=1.0,
                    softplus_threshold=20.0,
                    q=q.view(1, -1, HEADS, WIDTH),
                    k=k.view(1, -1, HEADS, WIDTH),
                    v=v.view(1, -1, VALUE_HEADS, HEIGHT),
                    b=step["b"][place],
                    initial_state_source=self.caches.temporal[place],
                    initial_state_indices=slots,
                    use_qk_l2norm_in_kernel=True,
                    disable_state_update=True,
                    cu_seqlens=torch.arange(0, requests * ROWS + 1, ROWS, dtype=torch.int32),
                    **stored,
                )
            )
        return found

    def commit(self, slots: Any, last: Any, track_slots: Any, track_last: Any) -> None:
        """As `update_mamba_state_after_mtp_verify` does."""
        caches = self.caches
        if self.kept is not None:
            self.kept.commit_verified(caches, slots, last, track_slots, track_last)
        else:
            scattered(caches.temporal, caches.intermediate_ssm, slots, last)
            scattered(caches.temporal, caches.intermediate_ssm, track_slots, track_last)
        scattered(caches.conv[0], caches.intermediate_conv_window[0], slots, last)
        scattered(caches.conv[0], caches.intermediate_conv_window[0], track_slots, track_last)


def kept_rows() -> Any:
    """In float32, since Triton's interpreter gets BF16 wrong."""
    sizes = rows_of.Sizes(LAYERS, REQUESTS + 1, ROWS, HEADS, VALUE_HEADS, WIDTH, HEIGHT)
    kept = rows_of.StepRows(sizes, "triton", "cpu")
    for name in ("mixed", "a", "b"):
        setattr(kept, name, getattr(kept, name).float())
    return kept


def differing(one: torch.Tensor, two: torch.Tensor) -> int:
    """Numbers whose bits differ."""
    return int((one.contiguous().view(torch.int32) != two.contiguous().view(torch.int32)).sum())


def main() -> None:
    stock, ours = Route(None), Route(kept_rows())
    generator = torch.Generator().manual_seed(1)
    slots = torch.tensor([3, 1, -1, 2], dtype=torch.int32)  # the third is padding
    compared = wrong = 0
    for number in range(STEPS):
        size = {"raw": CHANNELS, "a": VALUE_HEADS, "b": VALUE_HEADS}
        step = {n: torch.randn(LAYERS, REQUESTS * ROWS, c, generator=generator) for n, c in size.items()}
        last = torch.randint(0, ROWS, (REQUESTS,), generator=generator)
        crosses = torch.tensor([number % 2 == 0, True, False, number > 2])
        track = (torch.arange(REQUESTS) + REQUESTS + 1, torch.where(crosses, last // 2, -1))
        pairs = list(zip(stock.verify(step, slots), ours.verify(step, slots), strict=True))
        pairs = [(x[:, rows], y[:, rows]) for x, y in pairs for rows in (slice(0, 2 * ROWS), slice(3 * ROWS, None))]
        for route in (stock, ours):
            route.commit(slots, last, *track)
        pairs += [(stock.caches.temporal, ours.caches.temporal), (stock.caches.conv[0], ours.caches.conv[0])]
        compared += sum(one.numel() for one, _ in pairs)
        wrong += sum(differing(one, two) for one, two in pairs)
    print(compared, "numbers,", wrong, "differ")


if __name__ == "__main__":
    main()
