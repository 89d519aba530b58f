"""Batched generation with a target: greedy, or sampled among the likeliest tokens. On CUDA a step is one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class Target(Protocol):
    """What generation and training ask of a target."""

    @property
    def embedding(self) -> Tensor:
        """[V, hidden]."""

    @property
    def head(self) -> Tensor:
        """[V, hidden]."""

    def __call__(self, ids: Tensor, layer_ids: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Final hidden states and layer outputs of one causal pass."""

    def new_cache(self, batch: int, slots: int) -> Any:
        """Room for `slots` positions."""

    def prefill(self, ids: Tensor, lengths: Tensor, cache: Any) -> Tensor:
        """Logits behind right-padded prompts; fills the cache."""

    def step(self, ids: Tensor, lengths: Tensor, cache: Any) -> Tensor:
        """Logits behind one more token at the positions `lengths`."""


class Generator:
    """A target with a cache of `batch` sequences of at most `slots` positions; used for one batch after another."""

    def __init__(self, target: Target, batch: int, slots: int) -> None:
        self.target, self.batch, self.slots = target, batch, slots
        self.cache = target.new_cache(batch, slots)
        device = target.embedding.device
        self._ids = torch.zeros(batch, dtype=torch.long, device=device)
        self._lengths = torch.ones(batch, dtype=torch.long, device=device)
        self._graph: Any = None
        self._logits: Tensor | None = None

    def _step(self) -> Tensor:
        """Logits [B, V] of the tokens in the buffers."""
        if self._ids.device.type != "cuda":
            return self.target.step(self._ids, self._lengths, self.cache)
        if self._graph is None:
            self._capture()
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def _capture(self) -> None:
        """Warm up on a side stream (cuBLAS workspaces), then record. The cache keeps what the next step rewrites."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        kept = clone_state(self.cache)
        with torch.cuda.stream(side):
            for _ in range(2):
                self.target.step(self._ids, self._lengths, self.cache)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._logits = self.target.step(self._ids, self._lengths, self.cache)
        restore_state(self.cache, kept)
        self._graph = graph

    @torch.no_grad()
    def run(
        self, prompts: Sequence[Sequence[int]], new_tokens: int, choose: Callable[[Tensor], Tensor], stop: int | None
    ) -> list[list[int]]:
        """Continue each prompt by at most `new_tokens`; a sequence ends with (and includes) the token `stop`.

        Args:
            prompts: at most `batch` of them, each with room for `new_tokens` more.
            choose: the next token ids [B] from logits [B, V].
        """
        longest = max(map(len, prompts))
        if len(prompts) > self.batch or longest + new_tokens > self.slots:
            raise ValueError(f"{len(prompts)} prompts of up to {longest} tokens do not fit")
        rows = [*prompts, *[prompts[-1]] * (self.batch - len(prompts))]
        ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=self._ids.device)
        self._lengths.copy_(torch.tensor([len(row) for row in rows]))
        chosen = [choose(self.target.prefill(ids, self._lengths, self.cache))]
        for _ in range(new_tokens - 1):
            self._ids.copy_(chosen[-1])
            chosen.append(choose(self._step()))
            self._lengths.add_(1)
        return [ended(row, stop) for row in torch.stack(chosen, 1)[: len(prompts)].tolist()]


def clone_state(cache: Any) -> dict[str, Tensor]:
    """Recurrent parts of a cache (tensors named in its `recurrent`): a step overwrites them in place."""
    return {name: getattr(cache, name).clone() for name in getattr(cache, "recurrent", ())}


def restore_state(cache: Any, kept: dict[str, Tensor]) -> None:
    """Undo what warming up did to the parts of `clone_state`."""
    for name, tensor in kept.items():
        getattr(cache, name).copy_(tensor)


def ended(ids: list[int], stop: int | None) -> list[int]:
    """Up to and with the first `stop`."""
    return ids[: ids.index(stop) + 1] if stop is not None and stop in ids else ids


def greedy(logits: Tensor) -> Tensor:
    """The most likely token of each row."""
    return logits.argmax(-1)


def sampler(seed: int, device: torch.device | str, top_k: int, temperature: float) -> Callable[[Tensor], Tensor]:
    """Draws among the `top_k` most likely tokens, seeded."""
    draw = torch.Generator(device=device).manual_seed(seed)

    def choose(logits: Tensor) -> Tensor:
        values, ids = logits.float().topk(top_k, dim=-1)
        picked = torch.multinomial(torch.softmax(values / temperature, -1), 1, generator=draw)
        return ids.gather(-1, picked)[:, 0]

    return choose
