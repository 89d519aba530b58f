"""Greedy decoding: prefill, the autoregressive loop and the speculative loop (draft, verify, accept, commit)."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .cache import Cache, KVSlots
from .clock import PhaseClock
from .drafter import Drafter, draft_block
from .lattice import Lattice, build_lattice
from .model import Model, Pass
from .proposal import Proposal, accept_chain, greedy_chain

PREFILL_ROWS = 256


@dataclass(eq=False)
class Request:
    """One sequence: its prompt, its limit, and what was generated so far."""

    prompt: list[int]
    max_new_tokens: int
    ignore_eos: bool = False
    output: list[int] = field(default_factory=list)
    accept_lengths: list[int] = field(default_factory=list)
    lattice: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None

    def take(self, tokens: list[int], eos: int) -> int:
        """Append what fits below the limit and up to the first EOS; the number of tokens taken.

        Tokens behind the cut are not counted anywhere: the last token taken in a step stands for its bonus token.
        """
        tokens = tokens[: self.max_new_tokens - len(self.output)]
        if not self.ignore_eos and eos in tokens:
            tokens, self.finish = tokens[: tokens.index(eos) + 1], "stop"
        self.output += tokens
        if self.finish is None and len(self.output) >= self.max_new_tokens:
            self.finish = "length"
        return len(tokens)


@dataclass
class Decoded:
    """A finished batch: the requests in the given order, and where its time went (of the whole batch)."""

    requests: list[Request]
    phase_ms: dict[str, float]
    step_ms: list[float]
    seconds: float


def pad(sequences: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded tokens [B, T] and lengths [B]."""
    longest = max(map(len, sequences))
    tokens = torch.tensor([s + [0] * (longest - len(s)) for s in sequences], device=device)
    return tokens, torch.tensor([len(s) for s in sequences], device=device)


class Decoder:
    """Decodes static batches with one target and, if given, one drafter of `draft_tokens` positions."""

    def __init__(self, model: Model, drafter: Drafter | None = None, draft_tokens: int = 8) -> None:
        self.model, self.drafter, self.draft_tokens = model, drafter, draft_tokens
        self.profiling = False

    @classmethod
    def of(cls, model: Model, drafter: Drafter | None, arguments: argparse.Namespace) -> Decoder:
        """The decoder that the server's arguments ask for."""
        return cls(model, drafter, arguments.speculative_num_draft_tokens)

    def predict(self, hidden: Tensor) -> Tensor:
        """The target's greedy tokens [...] for final hidden rows (ties: lowest id)."""
        return self.model.logits(hidden).argmax(-1)

    def target_pass(self, tokens: Tensor, cache: Cache) -> Pass:
        """The target over tokens [B, T] behind the cache: the AR pass for one row, a chain to verify for more."""
        return self.model.forward(tokens, cache, snapshots=tokens.shape[1] > 1)

    @torch.inference_mode()
    def generate(self, requests: list[Request], want_lattice: bool = False) -> Decoded:
        """Decode all requests as one static batch; a finished sequence leaves the batch at once."""
        clock, steps = PhaseClock(self.profiling), []
        with clock("prefill"):
            cache, context, anchor = self.prefill(requests)
            alive, anchor = self.hand_out(requests, [[t] for t in anchor.tolist()], cache, context)
        while alive:
            start = time.perf_counter()
            if self.drafter is None or context is None:
                tokens = self.plain_step(cache, anchor, clock)
            else:
                tokens = self.speculative_step(cache, context, anchor, clock, alive if want_lattice else None)
            with clock("commit"):
                alive, anchor = self.hand_out(alive, tokens, cache, context)
            steps.append((time.perf_counter() - start) * 1e3)
        phase_ms, seconds = clock.finish()
        return Decoded(requests, phase_ms, steps, seconds)

    def prefill(self, requests: list[Request]) -> tuple[Cache, KVSlots | None, Tensor]:
        """Commit every prompt, chunk by chunk; the cache, the drafter's context and the first tokens [B]."""
        tokens, lengths = pad([r.prompt for r in requests], self.model.embed.device)
        slots = max(len(r.prompt) + r.max_new_tokens for r in requests) + PREFILL_ROWS
        cache = self.model.new_cache(len(requests), slots)
        context = self.drafter.new_context(len(requests), slots, self.model.embed) if self.drafter else None
        first = torch.zeros_like(lengths)
        for start in range(0, tokens.shape[1], PREFILL_ROWS):
            part = tokens[:, start : start + PREFILL_ROWS]
            counts = (lengths - start).clamp(0, part.shape[1])
            real = torch.arange(part.shape[1], device=part.device) < counts.unsqueeze(1)
            out = self.model(part, cache, valid=real.unsqueeze(-1).float())
            self.commit(cache, context, out, counts)
            ends = (counts > 0) & (lengths <= start + part.shape[1])
            rows = torch.arange(len(counts), device=part.device)
            last = self.predict(out.hidden[rows, (counts - 1).clamp(0)])
            first = torch.where(ends, last, first)
        return cache, context, first

    def commit(self, cache: Cache, context: KVSlots | None, out: Pass, counts: Tensor) -> None:
        """Keep counts[b] rows of a pass in the target's cache and in the drafter's context."""
        if self.drafter is not None and context is not None:
            positions = cache.lengths.unsqueeze(1) + torch.arange(out.features.shape[1], device=counts.device)
            k, v = self.drafter.project(out.features, self.model.cos[positions], self.model.sin[positions])
            context.write(k, v, cache.lengths)
        cache.commit(out.written, counts)

    def plain_step(self, cache: Cache, anchor: Tensor, clock: PhaseClock) -> list[list[int]]:
        """One autoregressive step: one new token per sequence."""
        with clock("verify"):
            out = self.target_pass(anchor.unsqueeze(1), cache)
            tokens: list[list[int]] = self.predict(out.hidden).tolist()
        with clock("commit"):
            cache.commit(out.written, torch.ones_like(anchor))
        return tokens

    def speculative_step(
        self, cache: Cache, context: KVSlots, anchor: Tensor, clock: PhaseClock, record: list[Request] | None
    ) -> list[list[int]]:
        """One draft, verify, accept, commit cycle: the new tokens of each sequence, the bonus token last."""
        with clock("draft"):
            lattice = self.draft(cache, context, anchor)
            proposal = greedy_chain(lattice, anchor)
        with clock("verify"):
            out = self.target_pass(proposal.tokens, cache)
            predicted = self.predict(out.hidden).tolist()
        with clock("accept"):
            counts = accept_chain(proposal, predicted)
            tokens = [rows[: n + 1] for rows, n in zip(predicted, counts, strict=True)]
        with clock("commit"):
            self.commit(cache, context, out, torch.tensor(counts, device=anchor.device) + 1)
        if record is not None:
            record_lattice(record, lattice, proposal, counts, tokens)
        return tokens

    def draft(self, cache: Cache, context: KVSlots, anchor: Tensor) -> Lattice:
        """The drafter's lattice behind the anchors [B]."""
        assert self.drafter is not None
        block = draft_block(self.model, cache.lengths, cache.longest, self.draft_tokens)
        past = slice(None, cache.longest)
        rows = self.drafter(self.model.embed[anchor], block, context.k[:, :, past], context.v[:, :, past])
        head = self.model.embed if self.model.head is None else self.model.head
        return build_lattice(self.drafter, head, rows, anchor)

    def hand_out(
        self, alive: list[Request], tokens: list[list[int]], cache: Cache, context: KVSlots | None
    ) -> tuple[list[Request], Tensor]:
        """Give each sequence its new tokens and drop the finished ones: who goes on, and their anchors [B]."""
        eos = self.model.config.eos_token_id
        for request, new in zip(alive, tokens, strict=True):
            verified = bool(request.output)  # the first token comes from prefill
            taken = request.take(new, eos)
            if verified and self.drafter is not None:
                request.accept_lengths.append(taken)
        kept = [i for i, request in enumerate(alive) if request.finish is None]
        if 0 < len(kept) < len(alive):
            rows = torch.tensor(kept, device=cache.lengths.device)
            cache.select(rows)
            if context is not None:
                context.select(rows)
        return [alive[i] for i in kept], torch.tensor([tokens[i][-1] for i in kept], device=cache.lengths.device)


def record_lattice(
    alive: list[Request], lattice: Lattice, proposal: Proposal, counts: list[int], tokens: list[list[int]]
) -> None:
    """Append this step's lattice to each request (positions are absolute, the anchor's own position)."""
    for b, request in enumerate(alive):
        chain = proposal.tokens[b].tolist()
        request.lattice.append({
            "position": len(request.prompt) + len(request.output) - 1,
            "anchor": chain[0],
            "candidates": lattice.ids[b].tolist(),
            "logprobs": lattice.logprobs[b].tolist(),
            "transitions": lattice.transitions[b].tolist(),
            "chain": chain[1:],
            "correct_drafts": counts[b],
            "bonus": tokens[b][-1],
        })  # fmt: skip
