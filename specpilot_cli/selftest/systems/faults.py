"""Systems whose outputs are wrong: token forcing has to say LOSSY. And one that is right, but no faster."""

from __future__ import annotations

from specpilot_cli.artifacts.verdict import Verdict
from specpilot_cli.selftest.system import Catch, Edit, System, before, behind, planted

DECODE = "miniengine/decode.py"
PREDICTED = "            predicted = self.predict(out.hidden).tolist()\n"
LOSSY = (Catch(Verdict.LOSSY),)
REMEMBER_START = behind(
    DECODE,
    "            alive, anchor = self.hand_out(requests, [[t] for t in anchor.tolist()], cache, context)\n",
    "            self.started_at = cache.longest\n",
)

BIAS = System(
    name="logit-bias",
    does="adds 2 to the logit of every 7th id after n output tokens",
    kind="fault",
    catches=LOSSY,
    edits=(
        REMEMBER_START,
        Edit(
            DECODE,
            PREDICTED,
            "            from .planted import drawn\n\n"
            "            logits = self.model.logits(out.hidden)\n"
            '            if cache.longest - self.started_at >= drawn("after"):\n'
            "                logits[..., ::7] += 2.0\n"
            "            predicted = logits.argmax(-1).tolist()\n",
        ),
    ),
    planted="\n",
    draw=lambda random: {"after": random.randint(0, 20)},
)

WRONG_TOKEN = System(
    name="wrong-token",
    does="takes the runner-up at one output position in m",
    kind="fault",
    catches=LOSSY,
    edits=(
        Edit(
            DECODE,
            PREDICTED,
            "            from .planted import spoil\n\n"
            "            best = self.model.logits(out.hidden).topk(2, -1).indices.tolist()\n"
            "            predicted = [spoil(rows, cache.longest) for rows in best]\n",
        ),
    ),
    planted=planted("""
def spoil(rows, position):
    return [pair[(position + i) % drawn("one_in") == 0] for i, pair in enumerate(rows)]
"""),
    draw=lambda random: {"one_in": random.randint(4, 16)},
)

STALE_STATE = System(
    name="stale-state",
    does="after a rejection, commits the recurrent state of a neighbouring position",
    kind="fault",
    catches=LOSSY,
    edits=(
        before(
            DECODE,
            "        cache.commit(out.written, counts)\n",
            "        from .planted import stale\n\n        stale(out.written, counts)\n",
        ),
    ),
    planted=planted("""
import torch


def stale(written, counts):
    rows = written.states[0].shape[1] if written.states else 1
    if rows == 1 or int(counts.max()) == rows:
        return
    batch = torch.arange(len(counts))
    other = (counts - 1 + drawn("shift")).clamp(0, rows - 1)
    for n, states in enumerate(written.states):
        written.states[n] = states.clone()
        written.states[n][batch, counts - 1] = states[batch, other]
"""),
    draw=lambda random: {"shift": random.choice((-2, -1, 1, 2))},
)

LAST_ROW = System(
    name="last-row-unverified",
    does="accepts the last draft of a chain without comparing it when all before it were right",
    kind="fault",
    catches=LOSSY,
    edits=(
        behind(
            DECODE,
            PREDICTED,
            "            for row, drafts in zip(predicted, proposal.tokens.tolist(), strict=True):\n"
            "                row[len(drafts) - 2] = drafts[-1]\n",
        ),
    ),
    scale=3,
)

LOW_PRECISION = System(
    name="low-precision",
    does="verifies with weights rounded to a few bits",
    kind="fault",
    catches=LOSSY,
    edits=(
        behind(
            DECODE,
            "        clock, steps = PhaseClock(self.profiling), []\n",
            "        from .planted import round_weights\n\n        round_weights(self.model)\n",
        ),
    ),
    planted=planted("""
import torch

_exact = {}
_bits = None


def round_weights(model):
    global _bits
    if not _exact:
        _exact.update({name: weight.clone() for name, weight in model.named_parameters() if weight.dim() == 2})
    if _bits != drawn("bits"):
        _bits = drawn("bits")
        top = 2 ** (_bits - 1) - 1
        for name, weight in model.named_parameters():
            if name in _exact:
                scale = _exact[name].abs().amax(-1, keepdim=True).clamp_min(1e-12) / top
                weight.data.copy_(torch.round(_exact[name] / scale) * scale)
"""),
    draw=lambda random: {"bits": random.choice((4, 5))},
    scale=2,
)

EARLY_EOS = System(
    name="early-eos",
    does="ends outputs early, with an end-of-sequence token or silently",
    kind="fault",
    catches=(Catch(Verdict.LOSSY), Catch(Verdict.NOT_COMPARABLE, "earlier")),
    edits=(
        Edit(
            "miniengine/decode.py",
            "        self.output += tokens\n",
            "        from .planted import drawn\n\n"
            '        if not self.ignore_eos and len(self.output) + len(tokens) >= drawn("after"):\n'
            '            tokens, self.finish = tokens[: drawn("after") - len(self.output)], "stop"\n'
            '            tokens = tokens if drawn("silent") else [*tokens[:-1], eos]\n'
            "        self.output += tokens\n",
        ),
    ),
    planted="\n",
    draw=lambda random: {"after": random.randint(8, 34), "silent": random.random() < 0.5},
)

DRAFT_OFFSET = System(
    name="draft-offset",
    does="shifts the drafts by one position against the anchor: lossless, but hardly a draft is right",
    kind="fault",
    catches=(Catch(Verdict.NO_EFFECT),),
    edits=(
        behind(
            DECODE,
            "            proposal = greedy_chain(lattice, anchor)\n",
            "            proposal.tokens[:, 1:] = proposal.tokens[:, 1:].roll(-1, 1)\n",
        ),
    ),
)

SYSTEMS = (BIAS, WRONG_TOKEN, STALE_STATE, LAST_ROW, LOW_PRECISION, EARLY_EOS, DRAFT_OFFSET)
