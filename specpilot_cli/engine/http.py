"""HTTP client for engines that speak SGLang's native API (`/generate`, `/server_info`, `/flush_cache`)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.engine.base import Generation, TokenScore
from specpilot_cli.engine.process import EngineProcess, last_line

if TYPE_CHECKING:
    import requests

TOP_LOGPROBS = 32


class HttpServer:
    """A running engine behind HTTP. Satisfies `engine.base.Server` and, on the miniengine, `Profilable`."""

    def __init__(
        self, url: str, process: EngineProcess | None, argv: Sequence[str], *, timeout_s: float = 600.0
    ) -> None:
        import requests

        self.url, self.argv = url.rstrip("/"), tuple(argv)
        self._process, self._timeout_s = process, timeout_s
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy between controller and engine would be timed along

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> requests.Response:
        import requests

        try:
            answer = self._session.request(method, self.url + path, json=body, timeout=self._timeout_s)
        except requests.RequestException as error:
            raise ExternalFailed(f"{method} {path} failed.", self._why(str(error))) from None
        if answer.status_code != 200:
            raise ExternalFailed(f"{method} {path} answered {answer.status_code}.", self._why(answer.text))
        return answer

    def _why(self, text: str) -> str:
        if self._process is not None and not self._process.alive():
            return f"The engine died: {last_line(self._process.log)}"
        return text

    def _json(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return self._send(method, path, body).json()
        except ValueError:
            raise ExternalFailed(f"{method} {path} did not answer with JSON.") from None

    def healthy(self) -> bool:
        """Whether `/health` answers 200."""
        import requests

        try:
            return self._session.get(self.url + "/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def info(self) -> dict[str, Any]:
        """`/server_info`."""
        found = self._json("GET", "/server_info")
        if not isinstance(found, dict):
            raise ExternalFailed("GET /server_info did not answer with an object.")
        return found

    def flush(self) -> None:
        """`/flush_cache`."""
        self._send("POST", "/flush_cache")

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        *,
        ignore_eos: bool = False,
        lattice: bool = False,
        speculative: bool = True,
    ) -> list[Generation]:
        """See `engine.base.Server.generate`. The clock stops when the whole body has arrived, before it is parsed.

        speculative=False decodes AR in a server that has a drafter (miniengine only).
        """
        sampling = {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
        body: dict[str, Any] = {"input_ids": [list(p) for p in prompts], "sampling_params": sampling}
        if lattice:
            body["return_lattice"] = True
        if not speculative:
            body["speculative"] = False
        started = time.perf_counter()
        answer = self._send("POST", "/generate", body)
        wall = time.perf_counter() - started
        try:
            items = answer.json()
            generations = [_generation(item, wall) for item in items]
        except (ValueError, KeyError, TypeError) as error:
            raise ExternalFailed("POST /generate answered something unexpected.", repr(error)) from None
        if len(generations) != len(prompts):
            raise ExternalFailed(f"POST /generate answered {len(generations)} outputs for {len(prompts)} prompts.")
        return generations

    def score(self, prompt: Sequence[int], output: Sequence[int]) -> list[TokenScore]:
        """See `engine.base.Server.score`: one prefill over prompt + output with input logprobs."""
        body = {
            "input_ids": [*prompt, *output],
            "sampling_params": {"temperature": 0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": len(prompt) - 1,
            "top_logprobs_num": TOP_LOGPROBS,
        }
        found = self._json("POST", "/generate", body)
        try:
            return _scores(found["meta_info"], output)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ExternalFailed("POST /generate gave no usable logprobs.", repr(error)) from None

    def start_profile(self, output_dir: Path) -> None:
        """`/start_profile`."""
        self._send("POST", "/start_profile", {"output_dir": str(output_dir)})

    def stop_profile(self) -> Path:
        """`/stop_profile`; the trace's path."""
        return Path(str(self._json("POST", "/stop_profile")["trace"]))

    def measure_rows(self, rows: Sequence[int], *, context_len: int, repeats: int) -> dict[int, list[float]]:
        """`/measure_rows` (miniengine)."""
        body = {"rows": list(rows), "context_len": context_len, "repeats": repeats}
        found = self._json("POST", "/measure_rows", body)["samples_ms"]
        return {int(row): [float(ms) for ms in samples] for row, samples in found.items()}

    def alive(self) -> bool:
        """Whether the process still runs (True for a server that somebody else started)."""
        return self._process is None or self._process.alive()

    @property
    def pid(self) -> int | None:
        """Process id of the engine's leader; None for a server that somebody else started."""
        return None if self._process is None else self._process.pid

    def close(self) -> None:
        """Stop the process tree."""
        self._session.close()
        if self._process is not None:
            self._process.kill()


def _generation(item: dict[str, Any], wall: float) -> Generation:
    meta = item["meta_info"]
    reason = meta.get("finish_reason") or {}
    return Generation(
        output_ids=tuple(int(t) for t in item["output_ids"]),
        wall_s=wall,
        verify_steps=int(meta.get("spec_verify_ct", 0)),
        correct_drafts=int(meta.get("spec_correct_drafts", 0)),
        finish_reason=str(reason.get("type", "")) if isinstance(reason, dict) else str(reason),
        meta=meta,
    )


def _scores(meta: dict[str, Any], output: Sequence[int]) -> list[TokenScore]:
    """Last `len(output)` entries of the input logprobs; entry i is log p(output[i] | everything before)."""
    count = len(output)
    token_logprobs, tops = meta["input_token_logprobs"][-count:], meta["input_top_logprobs"][-count:]
    top_logits = meta.get("input_top_logits")
    logits = top_logits[-count:] if top_logits else [None] * count
    if len(token_logprobs) != count or len(tops) != count:
        raise ValueError(f"{len(token_logprobs)} logprobs for {count} tokens")
    return [_score(t, lp, top, lg) for t, lp, top, lg in zip(output, token_logprobs, tops, logits, strict=True)]


def _score(
    token: int, scored: Sequence[Any], top: Sequence[Sequence[Any]], logits: Sequence[Sequence[Any]] | None
) -> TokenScore:
    if int(scored[1]) != token:
        raise ValueError(f"the engine scored token {scored[1]}, not {token}")
    pairs = tuple((int(entry[1]), float(entry[0])) for entry in top)
    best = max(logprob for _, logprob in pairs)
    argmax = min(ident for ident, logprob in pairs if logprob == best)  # ties: lowest id
    by_id = {int(entry[1]): float(entry[0]) for entry in logits} if logits else {}
    top_logit = by_id.get(argmax)
    token_logprob = float(scored[0])
    token_logit = None if top_logit is None else top_logit - (best - token_logprob)
    return TokenScore(token, token_logprob, argmax, best, top_logit, token_logit, pairs)
