"""Greedy decoding with a static cache: one step captured as a CUDA graph, then replayed with no work on the host."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from specpilot_cli.core.errors import UsageFault
from specpilot_cli.w12.transformers import llama

WITHOUT_CUDNN = (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH)


def _check(model: nn.Module, length: int) -> None:
    """Refuses what a captured step would decode wrongly."""
    config: Any = model.config
    if config._attn_implementation != "sdpa":
        fact = f"Attention '{config._attn_implementation}' is not known here."
        raise UsageFault(fact, "The mask is built for sdpa.", "Load the model with attn_implementation='sdpa'.")
    window = getattr(config, "sliding_window", None)
    if window and length > window:  # the cache then moves its slots by a length that the host counts
        raise UsageFault(f"A cache of {length} slots is longer than the model's window of {window}.")


class Decoder:
    """Decodes with `model` (a causal LM of Transformers, BF16 or quantized) for prompts without padding.

    Args:
        length: slots of the cache, prompt and output together.
        rows: sequences decoded together, all of one length.
        fused: the step with few kernels (`llama.py`) instead of the model's own forward; None: where the model fits.
        early: of the fused step, launch a small kernel before the one in front has ended (same bits).
        cudnn: let torch choose cuDNN's attention for the model's own step; the prompt is read as torch chooses.

    Raises:
        UsageFault: the model cannot be decoded like this, or `fused` is asked for and does not fit; says why.
    """

    def __init__(
        self,
        model: nn.Module,
        length: int,
        rows: int = 1,
        fused: bool | None = None,
        early: bool = True,
        cudnn: bool = True,
    ) -> None:
        from transformers import StaticCache

        self.model, self.length, self.rows, self.cudnn = model, length, rows, cudnn
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        device, config = head.weight.device, model.config
        _check(model, length)
        why_not = llama.unfit(model, length)
        if fused and why_not:
            raise UsageFault(f"The fused step does not fit this model: {why_not}.", "", "Leave `fused` out.")
        self.cache: Any = StaticCache(config=config, max_cache_len=length)
        # its name in `forward` changed within Transformers 5
        known = "cache" in inspect.signature(model.forward).parameters
        self.with_cache = {"cache" if known else "past_key_values": self.cache, "use_cache": True}
        if not all(hasattr(layer, "cumulative_length") for layer in self.cache.layers):
            raise UsageFault("The model keeps other states than keys and values.", "They are not captured.")
        self.token = torch.zeros(rows, 1, dtype=torch.int64, device=device)
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.mask = torch.zeros(rows, 1, 1, length, dtype=torch.bool, device=device)
        self.written = torch.zeros(rows, length + 1, dtype=torch.int64, device=device)
        self.logits = torch.zeros(rows, head.weight.shape[0], dtype=head.weight.dtype, device=device)
        self.step = None if why_not or fused is False else llama.Step(model, length, early)
        self.graph: torch.cuda.CUDAGraph | None = None

    @property
    def fused(self) -> bool:
        """Whether the step with few kernels is used."""
        return self.step is not None

    @torch.no_grad()
    def prefill(self, ids: Tensor) -> None:
        """Reads prompts `[rows, T]` by the model's own forward and chooses their first token."""
        if ids.dim() != 2 or ids.shape[0] != self.rows or not 0 < ids.shape[1] < self.length:
            raise ValueError(f"prompts [{self.rows}, 1..{self.length - 1}] are taken, got {tuple(ids.shape)}")
        self.cache.reset()
        logits = self.model(input_ids=ids, logits_to_keep=1, **self.with_cache).logits
        self.position.fill_(ids.shape[1])
        self.mask.zero_()[..., : ids.shape[1]] = True
        self._choose(logits[:, -1])

    def _choose(self, logits: Tensor) -> None:
        """The best token becomes the next input; its place in `written` is the position it will have."""
        self.logits.copy_(logits)
        self.token.copy_(self.logits.argmax(-1, keepdim=True))
        self.written.index_copy_(1, self.position, self.token)

    def _own_forward(self) -> Tensor:
        self.mask.index_fill_(3, self.position, True)
        logits: Tensor = self.model(
            input_ids=self.token,
            position_ids=self.position.expand(self.rows, 1),
            attention_mask=self.mask,
            **self.with_cache,
        ).logits
        return logits[:, -1]

    @torch.no_grad()
    def _advance(self) -> None:
        if self.step is not None:
            logits = self.step(self.token, self.position, self.cache)
        else:
            with nullcontext() if self.cudnn else sdpa_kernel(list(WITHOUT_CUDNN)):
                logits = self._own_forward()
        self.position.add_(1)
        self._choose(logits)

    def capture(self, prompt: Tensor) -> None:
        """Captures the step after `prompt`; nothing to do on a CPU. The state is what `prefill` has to set again."""
        if self.graph is not None or self.token.device.type != "cuda":
            return
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.prefill(prompt)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._advance()
        torch.cuda.current_stream().wait_stream(side)
        self.prefill(prompt)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._advance()
        self.graph = graph

    def run(self, steps: int) -> None:
        """`steps` more tokens; returns before a GPU has computed them."""
        for _ in range(steps):
            if self.graph is not None:
                self.graph.replay()
            else:
                self._advance()

    def greedy(self, ids: Tensor, count: int) -> Tensor:
        """`count` tokens `[rows, count]` after prompts `[rows, T]`, whatever they are: no token ends a sequence."""
        if ids.shape[1] + count > self.length + 1:
            raise ValueError(f"{ids.shape[1]} + {count} tokens do not fit into a cache of {self.length}")
        self.capture(ids)
        self.prefill(ids)
        self.run(count - 1)
        return self.written[:, ids.shape[1] : ids.shape[1] + count].clone()
