"""HTTP client of SGLang 0.5.20's own routes, where they differ from the miniengine's."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specpilot_cli.core.errors import ExternalFailed, InputUnusable
from specpilot_cli.engine.base import Generation, TokenScore
from specpilot_cli.engine.http import HttpServer
from specpilot_cli.engine.process import EngineProcess, last_line
from specpilot_cli.engine.sglang.scoring import TOP, require_scorer, scores

TRACE_TIMEOUT_S = 120.0
FLUSH_TIMEOUT_S = 10.0
DYING_S = 1.0


@dataclass(frozen=True)
class Streamed:
    """A streamed answer: when each chunk arrived, and how many output tokens there were then.

    With `--stream-interval 1` (the default) a chunk is one decode step: one token, or one verify step's tokens. A
    server that decodes faster than it sends merges neighbouring chunks; how many steps there were, the engine counts.
    """

    generation: Generation
    arrivals: tuple[tuple[float, int], ...]
    """(seconds since the request was sent, output tokens so far), by the caller's clock."""

    @property
    def steps(self) -> int:
        """Decode steps after the prefill: verify steps, or one for each further token."""
        return self.generation.verify_steps or max(0, len(self.generation.output_ids) - 1)

    @property
    def step_ms(self) -> list[float]:
        """Time of each decode step: the gaps between chunks, or their mean where chunks were merged."""
        times = [seconds for seconds, _ in self.arrivals]
        gaps = [(after - before) * 1e3 for before, after in pairwise(times)]
        if len(gaps) == self.steps or not self.steps:
            return gaps
        return [sum(gaps) / self.steps] * self.steps


class SglangServer(HttpServer):
    """A running SGLang server."""

    def __init__(
        self,
        url: str,
        process: EngineProcess | None,
        argv: Sequence[str],
        *,
        folder: TemporaryDirectory[str] | None = None,
        launch: dict[str, Any] | None = None,
        vocab_size: int | None = None,
        timeout_s: float = 600.0,
    ) -> None:
        super().__init__(url, process, argv, timeout_s=timeout_s)
        self._folder, self._launch, self._vocab_size = folder, launch, vocab_size

    def info(self) -> dict[str, Any]:
        """`/server_info`, and `specpilot_launch`: interpreter, package versions, environment settings.

        `startup_time` goes into `internal_states`: it is no configuration, and no two servers share it.
        """
        found = super().info()
        states = found.get("internal_states")
        if isinstance(states, list) and states and isinstance(states[0], dict) and "startup_time" in found:
            states[0]["server_startup_time"] = found.pop("startup_time")
        if self._launch is not None:
            found["specpilot_launch"] = self._launch
        if self._vocab_size is not None:
            found.setdefault("vocab_size", self._vocab_size)
        return found

    def _why(self, text: str) -> str:
        """The exception in the log where the server died: a moment passes between its last connection and its end."""
        limit = time.monotonic() + DYING_S
        while self._process is not None and self._process.alive() and time.monotonic() < limit:
            time.sleep(0.05)
        if self._process is None or self._process.alive():
            return text
        return f"The engine died: {first_cause(self._process.log) or last_line(self._process.log)}"

    def _check_ids(self, prompts: Sequence[Sequence[int]]) -> None:
        """SGLang does not check ids without a tokenizer: one beyond the embedding kills the scheduler."""
        limit = self._vocab_size
        worst = max((token for prompt in prompts for token in prompt), default=0)
        if any(not prompt for prompt in prompts) or (limit is not None and worst >= limit):
            raise InputUnusable(
                "A prompt is empty or has a token id beyond the model's vocabulary.", f"Largest id {worst} of {limit}."
            )

    def _body(self, prompts: Sequence[Sequence[int]], max_new_tokens: int, ignore_eos: bool) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        return {"input_ids": [list(p) for p in prompts], "sampling_params": sampling}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        ignore_eos: bool = False,
        lattice: bool = False,
        speculative: bool = True,
        names: Sequence[str] | None = None,
    ) -> list[Generation]:
        """See `engine.base.Server.generate`.

        Args:
            names: request ids (`rid`) for the engine, one a prompt, that no running request has.
        Raises:
            ExternalFailed: also for `lattice` and for AR in a server with a drafter, which stock SGLang cannot do.
        """
        if lattice:
            raise ExternalFailed(
                "Stock SGLang records no lattices.", "", "Profile without the oracle; `lattice record` records them."
            )
        if not speculative and self.info().get("speculative_algorithm"):
            raise ExternalFailed("An SGLang server with a drafter cannot decode AR.", "", "Start one without it.")
        self._check_ids(prompts)
        body = self._body(prompts, max_new_tokens, ignore_eos)
        if names is not None:
            body["rid"] = list(names)
        started = time.perf_counter()
        answer = self._send("POST", "/generate", body)
        wall = time.perf_counter() - started
        try:
            found = [generation(item, wall) for item in answer.json()]
        except (ValueError, KeyError, TypeError) as error:
            raise ExternalFailed("POST /generate answered something unexpected.", repr(error)) from None
        if len(found) != len(prompts):
            raise ExternalFailed(f"POST /generate answered {len(found)} outputs for {len(prompts)} prompts.")
        return found

    def stream(self, prompt: Sequence[int], max_new_tokens: int, *, ignore_eos: bool = True) -> Streamed:
        """Greedy continuation of one prompt, with the arrival of each chunk.

        Raises:
            ExternalFailed: the engine failed, or broke the stream off.
        """
        import requests

        self._check_ids([prompt])
        body = {**self._body([prompt], max_new_tokens, ignore_eos), "input_ids": list(prompt), "stream": True}
        arrivals, last = [], {}
        started = time.perf_counter()
        try:
            with self._session.post(self.url + "/generate", json=body, stream=True, timeout=self._timeout_s) as answer:
                if answer.status_code != 200:
                    raise ExternalFailed(f"POST /generate answered {answer.status_code}.", self._why(answer.text))
                # byte by byte only where nothing marks the pieces: at kilobytes a token the reader would be slower
                for line in answer.iter_lines(chunk_size=None if answer.raw.chunked else 1):
                    if line.startswith(b"data: {"):
                        arrived = time.perf_counter() - started
                        last = json.loads(line[6:])
                        arrivals.append((arrived, int(last["meta_info"]["completion_tokens"])))
        except (requests.RequestException, ValueError, KeyError) as error:
            raise ExternalFailed("POST /generate failed while it streamed.", self._why(str(error))) from None
        if not last or not last["meta_info"].get("finish_reason"):
            raise ExternalFailed("POST /generate broke the stream off.", self._why("No finish reason came."))
        return Streamed(generation(last, arrivals[-1][0]), tuple(arrivals))

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """See `engine.base.Server.score`: one prefill with `return_logprob`, FP32 LM head required."""
        require_scorer(self.info())
        self._check_ids([prompt, *([output] if output else [])])
        body = {
            "input_ids": [*prompt, *output],
            "sampling_params": {"temperature": 0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": TOP,
        }
        return scores(self._json("POST", "/generate", body), output, self._vocab_size)

    def flush(self) -> None:
        """`/flush_cache`, which waits until nothing runs: a request that was answered is not yet gone."""
        self._send("POST", f"/flush_cache?timeout={FLUSH_TIMEOUT_S:g}")

    def start_profile(self, output_dir: Path) -> None:
        """`/start_profile`: CPU annotations and GPU kernels, no stacks, no shapes (both slow the engine down)."""
        activities = ["CPU", "GPU"] if self.info().get("device") != "cpu" else ["CPU"]
        body = {"output_dir": str(output_dir), "activities": activities, "with_stack": False, "record_shapes": False}
        self._trace_dir = output_dir
        self._send("POST", "/start_profile", {**body, "detailed_annotations": True})

    def stop_profile(self) -> Path:
        """`/stop_profile`; the trace of the first rank, once it is complete on disk.

        Raises:
            ExternalFailed: no trace appeared.
        """
        self._send("POST", "/stop_profile")
        limit, sizes = time.monotonic() + TRACE_TIMEOUT_S, (-1, -2)
        while time.monotonic() < limit:
            found = sorted(self._trace_dir.glob("*.trace.json.gz"))
            if found and sizes[0] == sizes[1]:
                return found[0]
            sizes = (sizes[1], found[0].stat().st_size if found else -2 - int(time.monotonic()))
            time.sleep(0.5)
        raise ExternalFailed("The profiler wrote no trace.", f"Looked in {self._trace_dir}.")

    def measure_rows(self, rows: Sequence[int], *, context_len: int, repeats: int) -> dict[int, list[float]]:
        """Not a route of SGLang: rows are measured by batch size (`profiling.sglang_run`)."""
        raise ExternalFailed("SGLang has no route that times one verification pass.")

    def close(self) -> None:
        """Stop the process tree and remove the server's folder."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def generation(item: dict[str, Any], wall: float) -> Generation:
    """One answer of `/generate`. Counters are the request's own: `spec_verify_ct`, `spec_num_correct_drafts`."""
    meta = item["meta_info"]
    reason = meta.get("finish_reason") or {}
    return Generation(
        output_ids=tuple(int(t) for t in item["output_ids"]),
        wall_s=wall,
        verify_steps=int(meta.get("spec_verify_ct", 0)),
        correct_drafts=int(meta.get("spec_num_correct_drafts", 0)),
        finish_reason=str(reason.get("type", "")) if isinstance(reason, dict) else str(reason),
        meta=meta,
    )


def first_cause(log: Path) -> str:
    """The exception that ended a server: the last `SomeError: ...` line of its log; empty where there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return ""
    named = [line.strip() for line in lines if line[:1].isalpha() and line.split(" ", 1)[0].endswith("Error:")]
    return named[-1] if named else ""
