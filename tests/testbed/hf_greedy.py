"""Greedy text by Transformers in float32: `python hf_greedy.py CHECKPOINT NEW_TOKENS`, JSON on stdin and stdout."""

from __future__ import annotations

import json
import sys

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    """Continue each prompt of stdin; one forward pass with a cache for each token."""
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
    answers = []
    for ids in json.load(sys.stdin):
        rows, cache, answer = torch.tensor([ids]), None, []
        for _ in range(int(sys.argv[2])):
            with torch.no_grad():
                out = model(rows, past_key_values=cache, use_cache=True)
            cache, token = out.past_key_values, int(out.logits[0, -1].argmax())
            answer.append(token)
            rows = torch.tensor([[token]])
        answers.append(answer)
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
