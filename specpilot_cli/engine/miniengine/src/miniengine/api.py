"""What the HTTP paths do, without HTTP: checked JSON in, JSON out."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .decode import Decoded, Decoder, Request
from .loader import checkpoint_digest, load
from .scopes import open_scopes
from .scoring import score


class BadRequest(ValueError):
    """The caller's fault; the message says what to change."""


def _int(body: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = body.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise BadRequest(f"{name} must be an integer from {low} to {high}")
    return value


def _bool(body: dict[str, Any], name: str, default: bool = False) -> bool:
    value = body.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false")
    return value


class Api:
    """One loaded engine and its counters since start; every method runs on one thread."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        torch.manual_seed(arguments.random_seed)
        dtype = getattr(torch, arguments.dtype)
        model, drafter = load(arguments.model_path, arguments.speculative_algorithm, dtype)
        model.fp32_lm_head = arguments.fp32_lm_head
        self.arguments, self.model = arguments, model
        self.decoder = Decoder.of(model, drafter, arguments)
        self.autoregressive = Decoder(model)
        self.counters = dict.fromkeys(
            ("num_requests", "spec_verify_ct", "spec_correct_drafts", "completion_tokens", "prompt_tokens"), 0
        )
        self.digest = checkpoint_digest(arguments.model_path)
        self.profiler: torch.profiler.profile | None = None
        self.scopes = ExitStack()
        self.profile_dir = Path()
        self.profile_count = 0

    def server_info(self) -> dict[str, Any]:
        """Version, every resolved argument, the checkpoint's digest and the counters since start."""
        arguments = {k: str(v) if isinstance(v, Path) else v for k, v in vars(self.arguments).items()}
        return {
            "version": f"miniengine {__version__}",
            **arguments,
            "vocab_size": self.model.config.vocab_size,
            "model_digest": self.digest,
            "torch_version": torch.__version__,
            "internal_states": [dict(self.counters)],
        }

    def flush_cache(self, body: dict[str, Any]) -> dict[str, Any]:
        """Nothing outlives a request in this engine, so there is nothing to flush."""
        return {"success": True}

    def generate(self, body: dict[str, Any]) -> Any:
        """Decode or score one prompt or one static batch of prompts."""
        prompts, single = self._prompts(body)
        sampling = body.get("sampling_params", {})
        if not isinstance(sampling, dict):
            raise BadRequest("sampling_params must be an object")
        if sampling.get("temperature", 0) != 0:
            raise BadRequest("this engine decodes greedily: temperature must be 0")
        limit = _int(sampling, "max_new_tokens", 128, 0, 1 << 20)
        self._check_lengths(prompts, limit)
        results: list[dict[str, Any]] = [{"output_ids": [], "meta_info": {}} for _ in prompts]
        starts = self._starts(body, prompts)
        top = _int(body, "top_logprobs_num", 0, 0, self.model.config.vocab_size)
        started = time.perf_counter()
        if limit:
            ignore = _bool(sampling, "ignore_eos")
            requests = [Request(p, limit, ignore) for p in prompts]
            decoder = self.decoder if _bool(body, "speculative", default=True) else self.autoregressive
            decoded = decoder.generate(requests, _bool(body, "return_lattice"))
            results = [self._result(request, decoded, body) for request in requests]
        for result, prompt, start in zip(results, prompts, starts, strict=True):
            meta = result["meta_info"]
            meta.setdefault("finish_reason", {"type": "length", "length": 0})
            meta |= {"prompt_tokens": len(prompt), "completion_tokens": len(result["output_ids"]), "cached_tokens": 0}
            if start is not None:
                meta |= score(self.model, prompt, start, top)
            meta.setdefault("e2e_latency", time.perf_counter() - started)
            self._count(meta)
        return results[0] if single else results

    def _prompts(self, body: dict[str, Any]) -> tuple[list[list[int]], bool]:
        ids = body.get("input_ids")
        if not isinstance(ids, list) or not ids:
            raise BadRequest("input_ids must be a non-empty list of token ids, or a list of such lists")
        single = not isinstance(ids[0], list)
        prompts = [ids] if single else ids
        vocabulary = self.model.config.vocab_size
        for prompt in prompts:
            if not isinstance(prompt, list) or not prompt:
                raise BadRequest("every prompt must be a non-empty list of token ids")
            if not all(type(t) is int and 0 <= t < vocabulary for t in prompt):
                raise BadRequest(f"token ids must be integers from 0 to {vocabulary - 1}")
        return prompts, single

    def _check_lengths(self, prompts: list[list[int]], limit: int) -> None:
        draft = self.arguments.speculative_num_draft_tokens if self.decoder.drafter else 0
        positions, longest = self.model.config.max_position_embeddings, max(map(len, prompts)) + limit + draft
        if longest > positions:
            raise BadRequest(f"prompt, output and draft positions need {longest}, the model has {positions}")
        total = sum(map(len, prompts)) + limit * len(prompts)
        if total > self.arguments.max_total_tokens:
            raise BadRequest(f"the call needs {total} tokens, --max-total-tokens is {self.arguments.max_total_tokens}")

    def _starts(self, body: dict[str, Any], prompts: list[list[int]]) -> list[int | None]:
        """Where scoring starts in each prompt (-1: its last token, as in SGLang); None without return_logprob."""
        if not _bool(body, "return_logprob"):
            return [None] * len(prompts)
        given = body.get("logprob_start_len", -1)
        listed = given if isinstance(given, list) else [given] * len(prompts)
        if len(listed) != len(prompts):
            raise BadRequest("logprob_start_len must be one integer, or one for each prompt")
        starts: list[int | None] = []
        for value, prompt in zip(listed, prompts, strict=True):
            start = _int({"logprob_start_len": value}, "logprob_start_len", -1, -1, len(prompt) - 1)
            starts.append(len(prompt) - 1 if start == -1 else start)
        return starts

    def _result(self, request: Request, decoded: Decoded, body: dict[str, Any]) -> dict[str, Any]:
        reason: dict[str, Any] = {"type": request.finish}
        reason |= {"length": len(request.output)} if request.finish == "length" else {"matched": request.output[-1]}
        meta = {
            "spec_verify_ct": len(request.accept_lengths),
            "spec_correct_drafts": sum(request.accept_lengths) - len(request.accept_lengths),
            "accept_lengths": request.accept_lengths,
            "phase_ms": decoded.phase_ms,
            "step_ms": decoded.step_ms,
            "e2e_latency": decoded.seconds,
            "finish_reason": reason,
        }
        if _bool(body, "return_lattice"):
            meta["lattice"] = request.lattice
        return {"output_ids": request.output, "meta_info": meta}

    def _count(self, meta: dict[str, Any]) -> None:
        self.counters["num_requests"] += 1
        for name in ("spec_verify_ct", "spec_correct_drafts", "completion_tokens", "prompt_tokens"):
            self.counters[name] += meta.get(name, 0)

    @torch.inference_mode()
    def measure_rows(self, body: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds of a target pass at batch 1 by row count: 1 is the AR pass, more are chains to verify."""
        rows = body.get("rows")
        if not isinstance(rows, list) or not rows or not all(type(r) is int and 1 <= r <= 256 for r in rows):
            raise BadRequest("rows must be a non-empty list of integers from 1 to 256")
        context, repeats = _int(body, "context_len", 128, 1, 1 << 20), _int(body, "repeats", 10, 1, 1000)
        self._check_lengths([[0] * (context + max(rows))], 0)
        generator = torch.Generator().manual_seed(self.arguments.random_seed)
        ids = torch.randint(self.model.config.vocab_size, (1, context + max(rows)), generator=generator)
        cache = self.model.new_cache(1, context + max(rows))
        cache.commit(self.model(ids[:, :context], cache).written, torch.tensor([context]))
        samples: dict[str, list[float]] = {str(r): [] for r in rows}
        for repeat in range(repeats + 1):  # row counts are interleaved so that drift hits all alike
            for count in rows:
                start = time.perf_counter()
                self.decoder.predict(self.decoder.target_pass(ids[:, context : context + count], cache).hidden).tolist()
                if repeat:  # the first round warms up
                    samples[str(count)].append((time.perf_counter() - start) * 1e3)
        return {"samples_ms": samples, "context_len": context}

    def start_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start recording CPU operators and phase ranges."""
        directory = body.get("output_dir")
        if not isinstance(directory, str) or not directory:
            raise BadRequest("output_dir must be a directory name")
        if self.profiler is not None:
            raise BadRequest("a profile is being taken already: POST /stop_profile first")
        try:
            self.profile_dir = Path(directory)
            self.profile_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadRequest(f"output_dir cannot be created: {error}") from error
        activities = [torch.profiler.ProfilerActivity.CPU]
        self.profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        self.profiler.start()
        self.decoder.profiling = self.autoregressive.profiling = True
        self.scopes = open_scopes(self.model, self.decoder.drafter)
        return {"success": True}

    def stop_profile(self, body: dict[str, Any]) -> dict[str, Any]:
        """Stop recording; the Chrome trace's path."""
        if self.profiler is None:
            raise BadRequest("no profile is being taken: POST /start_profile first")
        profiler, self.profiler = self.profiler, None
        self.decoder.profiling = self.autoregressive.profiling = False
        self.scopes.close()
        profiler.stop()
        self.profile_count += 1
        path = self.profile_dir / f"miniengine-{self.profile_count}.trace.json"
        profiler.export_chrome_trace(str(path))
        return {"trace": str(path)}
