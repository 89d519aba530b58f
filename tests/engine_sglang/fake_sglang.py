"""A loopback server that speaks SGLang 0.5.20's routes, as `sglang/launch_server.py` of a made-up worktree.

The shapes of its answers are those of the real server (CPU, `--skip-tokenizer-init`). Behaviour comes from `fake.json`
next to the package; every flag appears in `/server_info`. It starts a child as the real one starts its scheduler.
Standard library only.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

VOCABULARY = 64
STEP_S = 0.002
FILE = Path(__file__).parents[1] / "fake.json"
PLAN: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
TRACE = Path(PLAN["trace"]).read_bytes() if "trace" in PLAN else b"trace"


def flags(argv: list[str]) -> dict[str, Any]:
    """Flags as SGLang's resolved arguments."""
    found: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "kv_cache_dtype": "auto",
        "speculative_algorithm": None,
    }
    found["enable_fp32_lm_head"] = False
    for at, word in enumerate(argv):
        if word.startswith("--"):
            name, _, value = word[2:].partition("=")
            follows = argv[at + 1] if at + 1 < len(argv) and not argv[at + 1].startswith("--") else True
            found[name.replace("-", "_")] = value or follows
    return found


ARGS = flags(sys.argv[1:])
DRAFTS = int(ARGS.get("speculative_num_draft_tokens", 0))


def choose(context: list[int]) -> list[tuple[float, int]]:
    """(logprob, id) of every token, best first: a cheap hash of the last two tokens."""
    before, last = (context[-2] if len(context) > 1 else 0), context[-1]
    scored = [(-(((t * 7919 + last * 104729 + before * 1299709) % 1009) / 100), t) for t in range(VOCABULARY)]
    return sorted(scored, key=lambda item: (-item[0], item[1]))


def steps(count: int) -> list[int]:
    """Tokens of each decode step: the first comes from the prefill; speculation then gives three at a time."""
    found = [1]
    while sum(found) < count:
        found.append(min(3 if ARGS["speculative_algorithm"] else 1, count - sum(found)))
    return found


def meta(prompt: list[int], output: list[int], finish: Any, lengths: list[int]) -> dict[str, Any]:
    """`meta_info` of a request."""
    found: dict[str, Any] = {"id": "0" * 32, "finish_reason": finish, "prompt_tokens": len(prompt)}
    found |= {"weight_version": "default", "num_retractions": 0, "completion_tokens": len(output), "cached_tokens": 0}
    found |= {"cached_tokens_details": None, "dp_rank": None}
    if finish and ARGS["speculative_algorithm"]:
        verify = len(lengths) - 1
        correct = 2 * verify  # the engine counts the last step whole although the output was cut
        found |= {"spec_accept_rate": correct / (verify * max(1, DRAFTS - 1)), "spec_verify_ct": verify}
        found |= {"spec_accept_length": len(output) / verify, "spec_num_correct_drafts": correct}
        found |= {"spec_num_proposed_drafts": verify * (DRAFTS - 1), "spec_accepted_drafts": correct}
    return found


def generate(prompt: list[int], sampling: dict[str, Any]) -> tuple[list[int], list[int], Any]:
    """Output, tokens of each step, finish reason."""
    limit = int(sampling.get("max_new_tokens", 16))
    context = list(prompt)
    for _ in range(limit):
        token = choose(context)[0][1]
        if PLAN.get("bias") and len(context) % 4 == 0:
            token = choose(context)[3][1]
        context.append(token)
    output = context[len(prompt) :]
    return output, steps(limit), {"type": "length", "length": limit}


def record(name: str, prompt: list[int], output: list[int], lengths: list[int]) -> None:
    """A lattice of every step, as the memory entry `record-lattice` (whose file writer lies beside) records it."""
    import numpy as np
    from sglang.srt.speculative.lattice_file import LatticeFolder, Recorded

    depth, text = DRAFTS - 1, list(output)
    for _ in range(DRAFTS):  # the last step was accepted whole
        text.append(choose([*prompt, *text])[0][1])
    starts = np.arange(len(lengths) - 1) * 3
    drafts = np.array([text[o : o + 3] + [(text[o + 3] + 1) % VOCABULARY] * (depth - 2) for o in starts])
    ids = np.stack([drafts[:, 1:], (drafts[:, 1:] + 1) % VOCABULARY], 2)
    steps = {
        "position": len(prompt) + starts, "drafts": drafts, "accepted": np.full(len(starts), 2),
        "bonus": np.array([text[o + 3] for o in starts]), "ids": ids,
        "logprobs": np.log(np.broadcast_to(np.array([0.6, 0.3], np.float32), ids.shape)),
        "tolerance": np.zeros((len(starts), depth), np.float32),
    }  # fmt: skip
    if PLAN.get("loses_steps"):
        steps = {key: value[1:] for key, value in steps.items()}
    header = {"positions": depth, "candidates": 2, "vocab_size": VOCABULARY, "transitions": "none", "drafter": "DFLASH"}
    with RECORDING:
        folder = LatticeFolder(str(ARGS["speculative_lattice_dir"]), {**header, "recorder": "fake"})
        kept = text[: 1 + 3 * len(starts)]
        warm_up = [] if folder.shards else ["0" * 32]  # a server asks itself first
        tokens = np.array([*prompt, *kept])
        folder.append([Recorded(n, tokens, len(prompt), len(output), steps) for n in (*warm_up, name)])
        folder.write_index(complete=True)


RECORDING = threading.Lock()


def score(ids: list[int], start: int, top: int) -> dict[str, Any]:
    """`input_token_logprobs` and `input_top_logprobs` from `start` on."""
    given: list[Any] = [[None, ids[start], None]]
    tops: list[Any] = [None]
    for at in range(start + 1, len(ids)):
        ranked = choose(ids[:at])
        by_id = {token: logprob for logprob, token in ranked}
        given.append([by_id[ids[at]], ids[at], None])
        tops.append([[logprob, token, None] for logprob, token in ranked[:top]])
    return {"input_token_logprobs": given, "input_top_logprobs": tops, "output_token_logprobs": []}


class Handler(BaseHTTPRequestHandler):
    """The routes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def _answer(self, body: Any, status: int = 200) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        """`/health`, `/server_info`."""
        if self.path == "/health":
            self._answer("", 503 if time.monotonic() - STARTED < PLAN.get("warm_up_s", 0) else 200)
        elif self.path == "/server_info":
            states = [{**ARGS, "last_gen_throughput": 1.0, "memory_usage": {"weight": 1.0, "token_capacity": 4096}}]
            seen = {k: v for k, v in os.environ.items() if k.startswith(("SGLANG_", "PYTHON"))}
            extra = {
                "startup_time": {"scheduler_e2e": time.time()},
                "cwd": str(Path.cwd()),
                "env": seen,
                "pid": os.getpid(),
            }
            self._answer({**ARGS, **extra, **PLAN.get("info", {}), "internal_states": states, "version": "0.5.20"})
        else:
            self._answer("", 404)

    def do_POST(self) -> None:
        """`/generate` (with `stream`), `/flush_cache`, `/start_profile`, `/stop_profile`."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path == "/flush_cache?timeout=10":
            self._answer("Cache flushed.\n")
        elif self.path == "/start_profile":
            PLAN["trace_dir"] = body["output_dir"]
            self._answer("Start profiling.\n")
        elif self.path == "/stop_profile":
            (Path(PLAN["trace_dir"]) / "1-TP-0.trace.json.gz").write_bytes(TRACE)
            self._answer("Stop profiling. This will take some time.\n")
        elif PLAN.get("die"):
            print("RuntimeError: planned failure", flush=True)
            os._exit(9)
        elif PLAN.get("error"):
            self._answer({"error": {"message": "planned failure"}}, 400)
        elif body.get("stream"):
            self._stream(body)
        else:
            ids = body["input_ids"]
            time.sleep(STEP_S * len(steps(int(body["sampling_params"]["max_new_tokens"]))))
            prompts, names = (ids, body.get("rid")) if isinstance(ids[0], list) else ([ids], None)
            many = [self._one(i, body, names[n] if names else "") for n, i in enumerate(prompts)]
            self._answer(many if isinstance(ids[0], list) else many[0])

    def _one(self, ids: list[int], body: dict[str, Any], name: str) -> dict[str, Any]:
        output, lengths, finish = generate(ids, body["sampling_params"])
        if name and "speculative_lattice_dir" in ARGS:
            record(name, ids, output, lengths)
        found = meta(ids, output, finish, lengths)
        if body.get("return_logprob"):
            found |= score(ids, body["logprob_start_len"], body["top_logprobs_num"])
        return {"output_ids": output, "meta_info": found}

    def _stream(self, body: dict[str, Any]) -> None:
        output, lengths, finish = generate(body["input_ids"], body["sampling_params"])
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        done = 0
        for length in lengths:
            done += length
            last = done == len(output)
            if last and PLAN.get("break_off"):
                break
            item = {
                "output_ids": output[:done],
                "meta_info": meta(body["input_ids"], output[:done], finish if last else None, lengths),
            }
            self.wfile.write(b"data: " + json.dumps(item).encode() + b"\n\n")
            time.sleep(STEP_S)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True


def scheduler() -> None:
    """The child: does nothing, for ever."""
    threading.Event().wait()


STARTED = time.monotonic()
if __name__ == "__main__":
    if PLAN.get("refuse"):
        raise ValueError(PLAN["refuse"])
    child = multiprocessing.get_context("spawn").Process(target=scheduler, name="scheduler")
    child.start()
    print("child", child.pid, flush=True)
    ThreadingHTTPServer((ARGS["host"], int(ARGS["port"])), Handler).serve_forever(poll_interval=0.05)
