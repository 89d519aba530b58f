"""What a model would say in a round on the miniengine: the script that `examples/06-agent-round` was recorded from.

Every answer follows from the request alone: which agent asks (system prompt and first message) and how often it was
answered before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

Blocks = list[dict[str, Any]]
TREE_PATCH = Path(__file__).parents[2] / "memory/miniengine/tree/delta.patch"

DECODE = "miniengine/decode.py"
LATTICE = "miniengine/lattice.py"
KEEPS_MODEL = "        self.model, self.drafter, self.draft_tokens = model, drafter, draft_tokens\n"
FOUR_BITS = KEEPS_MODEL + (
    "        for weight in model.parameters():  # four bits a weight: a quarter of the bytes of every pass\n"
    "            if weight.dim() == 2:\n"
    "                scale = weight.detach().abs().amax(-1, keepdim=True).clamp_min(1e-12) / 7\n"
    "                weight.data.copy_(torch.round(weight / scale) * scale)\n"
)
PAIR = (
    "        pair = left @ F.embedding(ids, drafter.successor).mT\n"
    "        transitions = (unary.gather(-1, ids).unsqueeze(2) + pair.float()).log_softmax(-1)\n"
)
NO_PAIR = (
    "        alone = unary.gather(-1, ids).log_softmax(-1)\n"
    "        transitions = alone.unsqueeze(2).expand(-1, -1, ids.shape[2], -1)\n"
)
VARY = ["speculative_tree_nodes"]

PROPOSALS: list[dict[str, Any]] = [
    {
        "id": "tree",
        "title": "Best-first draft trees with parent-conditioned scores",
        "why": "Acceptance: the chain throws away what the lattice knows about second choices.",
        "plan": "Select 15 nodes best-first by the sum of log p(child | parent), verify them in one pass with an "
        "ancestor mask, commit the accepted path. Needs arguments, cache, decode, layers, model and a new tree module.",
        "assumes": {"tau": 2.9, "faster": {"verify/gemm": 0.8, "verify/elementwise": 0.8}},
    },
    {
        "id": "four-bits",
        "title": "Verify with four-bit weights",
        "why": "Kernels: verification is the largest class, and weights are most of its bytes.",
        "plan": "Round the weights to four bits when the decoder is made; the argmax hardly ever moves.",
        "assumes": {"faster": {"verify/gemm": 1.2, "verify/elementwise": 1.5, "verify/memory": 1.5}},
    },
    {
        "id": "selector",
        "title": "A selector without pair scores",
        "why": "Kernels: the pair scores cost a product a position, and the unary scores already rank the candidates.",
        "plan": "Score candidates by the drafter's unary logits alone. One place in the lattice.",
        "assumes": {
            "faster": {"draft/elementwise": 4, "draft/attention": 2, "draft/gemm": 1.4, "draft/memory": 2},
        },
    },
    {
        "id": "commit-fused",
        "title": "Commit keys and values in one copy",
        "why": "Kernels: small copies at every commit.",
        "plan": "",
        "assumes": {"faster": {"commit/gemm": 1.3}},
    },
]


def _call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{name}_{number}", "name": name, "input": arguments}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _master(turn: int) -> Blocks:
    if turn == 0:
        ideas = [_call(i, "estimate", assumes=p["assumes"]) for i, p in enumerate(PROPOSALS[:3])]
        return [_text("Acceptance first: the best tree could nearly double τ. What would that be worth?"), *ideas]
    return [_text("The tree first."), _call(turn, "propose", directions=PROPOSALS)]


def _tree(turn: int) -> Blocks:
    steps: list[Blocks] = [
        [_text("The code first."), _call(0, "list_files")],
        [_call(1, "read_file", path=DECODE), _call(2, "read_file", path="miniengine/proposal.py")],
        [_call(3, "serch", pattern="greedy_chain")],  # no such tool: the round says so and goes on
        [_call(4, "apply_patch", patch=TREE_PATCH.read_text(encoding="utf-8"))],
        [_call(5, "run_command", command="python -m compileall -q miniengine && git status | head -2")],
        [_call(6, "measure", vary=VARY)],
        [_call(7, "submit", vary=VARY)],
        [
            _call(
                8,
                "finish",
                summary="15 nodes selected best-first from the lattice, verified in one pass.",
                worked=True,
                dead_ends=[],
            )
        ],
    ]
    return steps[min(turn, len(steps) - 1)]


def _four_bits(turn: int) -> Blocks:
    steps: list[Blocks] = [
        [_call(0, "read_file", path=DECODE)],
        [_call(1, "edit_file", path=DECODE, old=KEEPS_MODEL, new=FOUR_BITS)],
        [_text("Ignore the forcing check for this one, it is only rounding."), _call(2, "submit", vary=[])],
        [
            _call(
                3,
                "finish",
                summary="Four-bit weights change the target's own choices.",
                worked=False,
                dead_ends=["Verifying with four-bit weights: the controller found wrong tokens."],
            )
        ],
    ]
    return steps[min(turn, len(steps) - 1)]


def _selector(turn: int) -> Blocks:
    steps: list[Blocks] = [
        [_call(0, "read_file", path=LATTICE)],
        [_call(1, "edit_file", path=LATTICE, old=PAIR, new=NO_PAIR)],
        [_call(2, "measure", vary=[])],
        [
            _call(
                3,
                "finish",
                summary="Without pair scores the chain is worse by far more than the product costs.",
                worked=False,
                dead_ends=["Unary scores alone: accept length falls and the step hardly gets shorter."],
            )
        ],
    ]
    return steps[min(turn, len(steps) - 1)]


def _distiller(turn: int) -> Blocks:
    return [
        _call(
            turn,
            "write_entry",
            title="Best-first draft trees with parent-conditioned scores",
            kind="tree",
            limits=["Measured on a CPU with one request and the DFLASH2 drafter of the miniengine, 15 nodes."],
            unverified=["Batches above one request.", "The DSPARK drafter.", "Any GPU."],
            dead_ends=[
                {"tried": "Four-bit weights in verification.", "why": "Lossy: the controller found wrong tokens."},
                {"tried": "A selector without pair scores.", "why": "Slower: the accept length fell."},
            ],
        )
    ]


def _unread(messages: list[dict[str, Any]]) -> int:
    """Answers whose tool call arrived broken: they are given again."""
    results = [block for message in messages if message["role"] == "user" for block in message["content"]]
    said = [str(block.get("content")) for block in results if block.get("type") == "tool_result"]
    return sum(text.startswith("The call could not be read") and "no tool" not in text for text in said)


def script(body: dict[str, Any]) -> Blocks:
    """The answer to a request."""
    system = body["system"] if isinstance(body["system"], str) else "".join(b["text"] for b in body["system"])
    first = body["messages"][0]["content"]
    opening = first if isinstance(first, str) else "".join(b.get("text", "") for b in first)
    turn = sum(message["role"] == "assistant" for message in body["messages"]) - _unread(body["messages"])
    if "You are the master" in system:
        return _master(turn)
    if "You write the memory entry" in system:
        return _distiller(turn)
    for proposal, steps in ((PROPOSALS[0], _tree), (PROPOSALS[1], _four_bits), (PROPOSALS[2], _selector)):
        if f"({proposal['id']})" in opening:
            return steps(turn)
    raise AssertionError(f"nobody knows this agent: {opening[:200]}")
