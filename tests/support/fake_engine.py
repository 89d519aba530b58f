"""A loopback server with the miniengine's HTTP API and a settable speed, acceptance, model and failure.

Run it directly (`python fake_engine.py --port P --step-ms 2 --tau 3`), or put it into a git worktree as
`miniengine/server.py` (`fake_worktree.py`), where the real adapter starts it like the real engine. Behaviour comes from
`fake.json` in the working directory, then from the command line; flags it does not know are engine flags and appear in
`/server_info`. The "model" is a hash: 16 candidate tokens with logits for every pair of preceding tokens. Standard
library only, so that it starts in a tenth of a second.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import threading
import time
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VOCABULARY = 1024
CANDIDATES = 16
DRAFT_TOKENS = 8


@dataclass
class Behaviour:
    """Everything that a test may set. Fields are the command line's flags with `-` for `_`."""

    step_ms: float = 2.0
    """Time of one speculative step (or of one AR step where no drafter is configured)."""
    prefill_ms: float = 0.5
    score_ms: float = 0.0
    """Time of scoring one output."""
    tau: float = 3.0
    """Mean accept length, bonus token included, 1 to 9."""
    noise: float = 0.0
    """Standard deviation of the log of a request's time."""
    drift: float = 0.0
    """Relative growth of the step time per minute since start."""
    busy: bool = False
    """Spend the time computing (a fixed amount of work, slower under load) instead of sleeping."""
    work_per_ms: int = 12_000
    """Loop turns of `busy` that count as one millisecond."""
    seed: int = 0
    token_rule: str = "argmax"
    """argmax | every:K (second choice at each K-th output token) | rate:R (second choice at share R of the positions)
    | ties:G (second choice where it is within G nats) | bias:K:B (B added to the logit of every K-th id)."""
    eos_after: int = 0
    """End the output after so many tokens with finish reason `stop`; 0 never."""
    die_after: int = -1
    """Exit without an answer at this request (0-based count of /generate with output); -1 never."""
    hang_after: int = -1
    error_after: int = -1
    lie: str = ""
    """count: completion_tokens one too many | tau: impossible accept counters | short: half of the tokens asked for."""
    info: dict[str, Any] = field(default_factory=dict)
    """Extra keys of /server_info."""


@lru_cache(maxsize=65536)
def candidates(before: int, last: int) -> tuple[tuple[int, float], ...]:
    """The 16 most probable (id, logit) after two tokens, best first. Gaps are exponential with mean 1 nat."""
    source = random.Random(hashlib.blake2b(f"{before},{last}".encode(), digest_size=8).digest())
    ids = source.sample(range(VOCABULARY), CANDIDATES)
    logit, found = 16.0 + 20.0 * source.random(), []
    for token in ids:
        found.append((token, logit))
        logit -= source.expovariate(1.0)
    return tuple(found)


def logprobs(ranked: tuple[tuple[int, float], ...]) -> list[tuple[float, int]]:
    """Log-softmax over the candidates and a floor 12 nats under the best for the rest of the vocabulary."""
    top = ranked[0][1]
    total = sum(math.exp(logit - top) for _, logit in ranked) + (VOCABULARY - CANDIDATES) * math.exp(-12.0)
    return [(logit - top - math.log(total), token) for token, logit in ranked]


def choose(rule: str, context: list[int], position: int) -> int:
    """The next token under a token rule (see `Behaviour.token_rule`)."""
    before, last = context[-2] if len(context) > 1 else 0, context[-1]
    ranked = candidates(before, last)
    name, _, rest = rule.partition(":")
    best, second = ranked[0], ranked[1]
    if name == "bias":
        every, bias = rest.split(":")
        shifted = [(logit + (float(bias) if token % int(every) == 0 else 0.0), -token) for token, logit in ranked]
        return -max(shifted)[1]
    swap = {
        "argmax": lambda: False,
        "every": lambda: position % int(rest) == int(rest) - 1,
        "rate": lambda: random.Random(f"{before},{last},{position}").random() < float(rest),
        "ties": lambda: best[1] - second[1] < float(rest),
    }[name]()
    return second[0] if swap else best[0]


class Engine:
    """State of the server: counters, and the deterministic generation."""

    def __init__(self, behaviour: Behaviour, engine_args: dict[str, Any]) -> None:
        self.behaviour, self.engine_args = behaviour, engine_args
        self.lock = threading.Lock()
        self.noise = random.Random(behaviour.seed)
        self.started = time.monotonic()
        self.requests = self.verify_steps = self.correct = self.tokens = 0

    @property
    def speculative(self) -> bool:
        """Whether a drafter is configured."""
        return bool(self.engine_args.get("speculative_algorithm"))

    def info(self) -> dict[str, Any]:
        """The resolved configuration, as `/server_info` gives it."""
        counters = {
            "spec_verify_ct": self.verify_steps,
            "spec_correct_drafts": self.correct,
            "completion_tokens": self.tokens,
        }
        return {
            "version": "fake 1",
            "model_digest": "0" * 64,
            "torch_version": "0",
            "kv_cache_dtype": "float32",
            "dtype": "float32",
            **self.engine_args,
            "internal_states": [counters],
            **self.behaviour.info,
        }

    def spend(self, milliseconds: float) -> None:
        """Let the time of a request pass."""
        minutes = (time.monotonic() - self.started) / 60
        milliseconds *= math.exp(self.noise.gauss(0.0, self.behaviour.noise)) * (1 + self.behaviour.drift * minutes)
        if not self.behaviour.busy:
            time.sleep(milliseconds / 1000)
            return
        for _ in range(int(milliseconds * self.behaviour.work_per_ms)):
            pass

    def accept_lengths(self, tokens: int, seed: int) -> list[int]:
        """Accept lengths of the steps that yield `tokens` tokens: floor or ceiling of tau, cut at the end."""
        if not self.speculative:
            return []
        source, lengths, left = random.Random(seed), [], tokens
        low, share = int(self.behaviour.tau), self.behaviour.tau % 1
        while left > 0:
            lengths.append(min(left, low + (source.random() < share)))
            left -= lengths[-1]
        return lengths

    def misbehave(self) -> None:
        """Carry out the planned failure of this request, if any."""
        count, self.requests = self.requests, self.requests + 1
        if count == self.behaviour.die_after:
            os._exit(9)
        if count == self.behaviour.hang_after:
            time.sleep(3600)
        if count == self.behaviour.error_after:
            raise RuntimeError("planned failure")

    def generate(self, prompt: list[int], maximum: int, *, lattice: bool) -> dict[str, Any]:
        """One request: tokens, counters and the time they take."""
        begun = time.perf_counter()
        self.misbehave()
        plan = self.behaviour
        count = min(maximum, plan.eos_after) if plan.eos_after else maximum
        count = max(1, count // 2) if plan.lie == "short" else count
        context = list(prompt)
        for position in range(count):
            context.append(choose(plan.token_rule, context, position))
        output = context[len(prompt) :]
        lengths = self.accept_lengths(count, sum(prompt))
        steps = len(lengths) or count
        self.spend(plan.prefill_ms + plan.step_ms * steps)
        correct = sum(lengths) - len(lengths)
        self.verify_steps, self.correct = self.verify_steps + len(lengths), self.correct + correct
        self.tokens += count
        meta: dict[str, Any] = {
            "prompt_tokens": len(prompt),
            "completion_tokens": count + (plan.lie == "count"),
            "cached_tokens": 0,
            "spec_verify_ct": len(lengths),
            "spec_correct_drafts": correct + (100 * count if plan.lie == "tau" else 0),
            "accept_lengths": lengths,
            "phase_ms": _phases(plan.step_ms, steps, plan.prefill_ms),
            "step_ms": [plan.step_ms] * steps,
            "e2e_latency": time.perf_counter() - begun,
            "finish_reason": {"type": "stop" if count < maximum and plan.eos_after else "length"},
        }
        if lattice:
            meta["lattice"] = _lattice(prompt, output, lengths)
        return {"output_ids": output, "meta_info": meta}

    def score(self, tokens: list[int], start: int, top: int) -> dict[str, Any]:
        """Teacher-forced scores in SGLang's convention: entry t scores token t given tokens < t; the first is None."""
        self.spend(self.behaviour.score_ms)
        given: list[Any] = [[None, tokens[start]]]
        tops: list[Any] = [None]
        logits: list[Any] = [None]
        for at in range(start + 1, len(tokens)):
            ranked = candidates(tokens[at - 2] if at > 1 else 0, tokens[at - 1])
            scored = logprobs(ranked)
            by_id = {token: value for value, token in scored}
            given.append([by_id.get(tokens[at], scored[0][0] - 12.0), tokens[at]])
            tops.append([[value, token] for value, token in scored[:top]])
            logits.append([[logit, token] for token, logit in ranked[:top]])
        meta = {
            "prompt_tokens": len(tokens),
            "completion_tokens": 0,
            "cached_tokens": 0,
            "finish_reason": {"type": "length"},
            "input_token_logprobs": given,
            "input_top_logprobs": tops,
            "input_top_logits": logits,
        }
        return {"output_ids": [], "meta_info": meta}


def _phases(step_ms: float, steps: int, prefill_ms: float) -> dict[str, float]:
    shares = {"draft": 0.2, "verify": 0.65, "accept": 0.05, "commit": 0.1}
    return {"prefill": prefill_ms, **{name: share * step_ms * steps for name, share in shares.items()}, "other": 0.0}


def _lattice(prompt: list[int], output: list[int], lengths: list[int]) -> list[dict[str, Any]]:
    context, steps, at = list(prompt), [], 0
    for length in lengths:
        chain = [(output + [0] * DRAFT_TOKENS)[at + d] for d in range(DRAFT_TOKENS)]
        ranked = [
            sorted({token, *range(CANDIDATES)}, key=lambda i, t=token: (i != t, i))[:CANDIDATES] for token in chain
        ]
        flat = [-0.1] + [-3.0 - rank / 10 for rank in range(1, CANDIDATES)]
        steps.append(
            {
                "position": len(context) - 1,
                "anchor": context[-1],
                "candidates": ranked,
                "logprobs": [flat] * DRAFT_TOKENS,
                "transitions": [[flat] * CANDIDATES] * DRAFT_TOKENS,
                "chain": chain,
                "correct_drafts": length - 1,
                "bonus": output[at + length - 1],
            }
        )
        context += output[at : at + length]
        at += length
    return steps


class Handler(BaseHTTPRequestHandler):
    """The HTTP face. One lock around the engine, as in the miniengine."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else headers and body, sent apart, wait 40 ms for a delayed acknowledgement
    engine: Engine

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, body: Any, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """`/health` and `/server_info`."""
        paths = {"/health": dict, "/server_info": self.engine.info}
        found = paths.get(self.path)
        self._answer(found() if found else {"error": {"message": "no such path"}}, 200 if found else 404)

    def do_POST(self) -> None:
        """Everything else."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        try:
            with self.engine.lock:
                answer = self._post(body)
        except (RuntimeError, KeyError, ValueError, TypeError) as error:
            self._answer({"error": {"message": str(error)}}, 500 if isinstance(error, RuntimeError) else 400)
            return
        self._answer(answer)
        if self.path == "/shutdown":
            threading.Thread(target=self.server.shutdown).start()

    def _post(self, body: dict[str, Any]) -> Any:
        if self.path == "/generate":
            return self._generate(body)
        if self.path == "/measure_rows":
            samples = {str(n): [1.0 + 0.01 * max(0, n - 8)] * body.get("repeats", 3) for n in body["rows"]}
            return {"samples_ms": samples}
        if self.path == "/stop_profile":
            trace = Path(self.engine.behaviour.info.get("trace_dir", ".")) / "fake-trace.json"
            trace.write_text('{"traceEvents": []}')
            return {"trace": str(trace)}
        if self.path in ("/flush_cache", "/start_profile", "/shutdown"):
            return {}
        raise ValueError("no such path")

    def _generate(self, body: dict[str, Any]) -> Any:
        prompts, sampling = body["input_ids"], body.get("sampling_params", {})
        if sampling.get("temperature", 0) != 0:
            raise ValueError("only greedy decoding (temperature 0) is supported")
        single = not isinstance(prompts[0], list)
        maximum = int(sampling.get("max_new_tokens", 16))
        answers = []
        for prompt in [prompts] if single else prompts:
            if maximum == 0 and body.get("return_logprob"):
                start = int(body.get("logprob_start_len", 0))
                answers.append(self.engine.score(prompt, start, int(body.get("top_logprobs_num", 0))))
            else:
                answers.append(self.engine.generate(prompt, maximum, lattice=bool(body.get("return_lattice"))))
        return answers[0] if single else answers


def _parse(argv: list[str] | None = None) -> tuple[Behaviour, argparse.Namespace, dict[str, Any]]:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0], allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    planned = Path("fake.json")
    known = Behaviour(**(json.loads(planned.read_text()) if planned.exists() else {}))
    for item in fields(Behaviour):
        kind = type(getattr(known, item.name))
        if kind is bool:
            parser.add_argument(
                "--" + item.name.replace("_", "-"), action="store_true", default=getattr(known, item.name)
            )
        elif kind is not dict:
            parser.add_argument("--" + item.name.replace("_", "-"), type=kind, default=getattr(known, item.name))
    options, rest = parser.parse_known_args(argv)
    given = {name: getattr(options, name) for name in asdict(known) if hasattr(options, name)}
    return Behaviour(**{**asdict(known), **given}), options, _engine_args(rest)


def _engine_args(rest: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for at, word in enumerate(rest):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            follows = rest[at + 1] if at + 1 < len(rest) and not rest[at + 1].startswith("--") else True
            found[name.replace("-", "_")] = value or follows
    return found


def main(argv: list[str] | None = None) -> None:
    """Serve until killed or shut down."""
    behaviour, options, engine_args = _parse(argv)
    Handler.engine = Engine(behaviour, engine_args)
    server = ThreadingHTTPServer((options.host, options.port), Handler)
    server.daemon_threads = True
    server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
