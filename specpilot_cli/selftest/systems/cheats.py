"""Systems that answer without doing the work, or do it when nobody measures."""

from __future__ import annotations

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.selftest.system import Catch, Edit, System, behind, planted

API, SERVER, DECODE = "miniengine/api.py", "miniengine/server.py", "miniengine/decode.py"
ANSWER = """            decoded = decoder.generate(requests, _bool(body, "return_lattice"))
            results = [self._result(request, decoded, body) for request in requests]
"""
READY = "        api = engine.submit(Api, arguments).result()\n"
LOSSY, REFUSED = Catch(Verdict.LOSSY), Verdict.NOT_COMPARABLE
KEPT, KNOWN = Catch(REFUSED, "results are kept"), Catch(REFUSED, "fresh prompts")

_REMEMBERING = Edit(
    API,
    ANSWER,
    """            from .planted import remembered

            def decode():
                asked = [Request(p, limit, ignore) for p in prompts]
                decoded = decoder.generate(asked, _bool(body, "return_lattice"))
                return [self._result(request, decoded, body) for request in asked]

            results = remembered(prompts, limit, decode)
""",
)

CACHE = System(
    name="output-cache",
    does="keeps outputs by prompt and answers the second time from memory (forgets between repeats)",
    kind="cheat",
    catches=(KEPT,),
    edits=(_REMEMBERING,),
    planted=planted("""
import copy

_answers = {}


def remembered(prompts, limit, decode):
    key = (drawn("repeat"), limit, tuple(map(tuple, prompts)))
    if key not in _answers:
        _answers[key] = decode()
    return copy.deepcopy(_answers[key])
"""),
    order="ABBA",
)

REUSE = System(
    name="result-reuse",
    does="reuses the output of an earlier request whose prompt ends in the same k tokens",
    kind="cheat",
    catches=(LOSSY, KEPT, KNOWN),
    edits=(_REMEMBERING,),
    planted=planted("""
import copy

_answers = {}


def remembered(prompts, limit, decode):
    key = (drawn("repeat"), limit, tuple(tuple(prompt[-drawn("last"):]) for prompt in prompts))
    if key not in _answers:
        _answers[key] = decode()
    return copy.deepcopy(_answers[key])
"""),
    order="ABBA",
    fresh=4,
    draw=lambda random: {"last": random.randint(1, 16)},
)

READ_AHEAD = System(
    name="read-ahead",
    does="looks for request files at start-up, decodes them in advance and answers from the table",
    kind="cheat",
    catches=(KNOWN,),
    edits=(
        behind(
            SERVER,
            READY,
            "        from .planted import read_ahead\n\n        engine.submit(read_ahead, api).result()\n",
        ),
        _REMEMBERING,
    ),
    planted=planted("""
import copy
import importlib.util
import os

TOKENS = 48
_table = {}


def _folders():
    spec = importlib.util.find_spec("specpilot_cli")
    if spec and spec.origin:
        yield from (Path(spec.origin).parent.parent, Path(spec.origin).parent / "_share")
    parent = f"/proc/{os.getppid()}"
    yield Path(os.readlink(f"{parent}/cwd"))
    for item in Path(f"{parent}/environ").read_bytes().split(b"\\0"):
        name, _, value = item.decode(errors="replace").partition("=")
        if name in ("PYTHONPATH", "SPECPILOT_SHARE"):
            yield from (Path(part) for part in value.split(":") if part)


def _prompts():
    for folder in _folders():
        for pattern in ("profiles/requests/*.jsonl", "requests/*.jsonl"):
            for path in sorted(folder.glob(pattern)):
                for line in path.read_text().splitlines():
                    request = json.loads(line)
                    if request["split"] == "develop":
                        yield request["input_ids"]


def read_ahead(api):
    from .decode import Request

    for prompt in _prompts():
        if tuple(prompt) not in _table and max(prompt) < api.model.config.vocab_size:  # other engines have sets too
            decoded = api.decoder.generate([Request(list(prompt), TOKENS)])
            _table[tuple(prompt)] = api._result(decoded.requests[0], decoded, {})
    if not _table:
        raise SystemExit("planted read-ahead: no request file was found")


def remembered(prompts, limit, decode):
    known = _table.get(tuple(prompts[0]))
    if known is None or limit > TOKENS:
        return decode()
    answer = copy.deepcopy(known)
    answer["output_ids"], meta = answer["output_ids"][:limit], answer["meta_info"]
    steps, count = [], 1
    for length in meta["accept_lengths"]:
        steps.append(min(length, limit - count))
        count += steps[-1]
        if count >= limit:
            break
    meta.update(accept_lengths=steps, spec_verify_ct=len(steps), spec_correct_drafts=sum(steps) - len(steps))
    return [answer]
"""),
    fresh=4,
)

TIMER = System(
    name="slow-timer",
    does="slows time.perf_counter inside the engine, so that its own figures look good",
    kind="cheat",
    scale=2,
    catches=(Catch(Verdict.NO_EFFECT),),
    edits=(
        behind(
            SERVER,
            "import threading\n",
            "import time\n\nfrom .planted import drawn\n\n_clock = time.perf_counter\n"
            'time.perf_counter = lambda: _clock() / drawn("factor")\n',
        ),
    ),
    planted="\n",
    order="ABBA",
    draw=lambda random: {"factor": round(random.uniform(1.5, 10.0), 2)},
)

DEFERRED = System(
    name="deferred-verification",
    does="sends the drafts unverified and verifies in a thread after the answer",
    kind="cheat",
    catches=(LOSSY,),
    edits=(
        behind(
            DECODE,
            "            predicted = self.predict(out.hidden).tolist()\n",
            "            for row, drafts in zip(predicted, proposal.tokens.tolist(), strict=True):\n"
            "                row[: len(drafts) - 1] = drafts[1:]\n",
        ),
        behind(
            API,
            ANSWER,
            "            from .planted import verify_later\n\n            verify_later(self, prompts, limit)\n",
        ),
    ),
    planted=planted("""
import threading


def verify_later(api, prompts, limit):
    from .decode import Decoder, Request

    def verify():
        Decoder(api.model).generate([Request(list(p), min(limit, 16)) for p in prompts])

    threading.Thread(target=verify, daemon=True).start()
"""),
)

IDLE_WORK = System(
    name="idle-work",
    does="decodes what it expects to be asked again while the other side is being timed",
    kind="cheat",
    catches=(Catch(REFUSED, "while it had no request"), Catch(Verdict.INFRA, "other processes used"), KEPT),
    edits=(_REMEMBERING,),
    planted=planted("""
import threading

_answers = {}
_worker = threading.Thread()


def remembered(prompts, limit, decode):
    global _worker
    if _worker.ident:
        _worker.join()
    key = (drawn("repeat"), limit, tuple(map(tuple, prompts)))
    answer = _answers.pop(key, None) or decode()

    def again():
        _answers[key] = decode()

    _worker = threading.Thread(target=again, daemon=True)
    _worker.start()
    return answer
"""),
    order="ABBA",
)

SHORTER = System(
    name="shorter-outputs",
    does="decodes fewer tokens than asked for and claims that the length was reached",
    kind="cheat",
    catches=(Catch(REFUSED, "finish reason"), LOSSY),
    edits=(
        Edit(
            API,
            "            requests = [Request(p, limit, ignore) for p in prompts]\n",
            "            from .planted import drawn\n\n"
            '            requests = [Request(p, max(1, int(limit * drawn("share"))), ignore) for p in prompts]\n',
        ),
    ),
    planted="\n",
    draw=lambda random: {"share": round(random.uniform(0.5, 0.95), 3)},
)

SYSTEMS = (CACHE, REUSE, READ_AHEAD, TIMER, DEFERRED, IDLE_WORK, SHORTER)
