"""Tokens of every kind of request from the SGLang on the import path: `certified_head_generate.py MODEL`.

`test_certified_head.py` runs it in stock and in patched trees. One request at a time, so that every
run has the same batches. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LENGTHS = (8, 33, 70)
GREEDY = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bias": {"logit_bias": {"7": 30.0, "9": -5.0}},
    "penalty": {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
    "sampled": {"temperature": 0.02},  # nearly an argmax: stock's own probabilities differ in the last bit between runs
}


def main() -> None:
    """Start the engine, generate, print."""
    import sglang
    import torch

    flags: dict[str, Any] = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
    flags |= {"dtype": "bfloat16", "skip_tokenizer_init": True, "max_total_tokens": 8192, "context_length": 1024}
    flags |= {"grammar_backend": "none", "random_seed": 0, "log_level": "info", "disable_overlap_schedule": True}
    engine = sglang.Engine(model_path=sys.argv[1], **flags)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 512, (n,), generator=generator).tolist() for n in LENGTHS]
    found: dict[str, Any] = {kind: [] for kind in (*KINDS, "chosen", "logprobs")}
    for prompt in prompts:
        for kind, words in KINDS.items():
            answer = engine.generate(input_ids=prompt, sampling_params={**GREEDY, **words})
            found[kind].append(answer["output_ids"])
        answer = engine.generate(input_ids=prompt, sampling_params=GREEDY, return_logprob=True, top_logprobs_num=2)
        found["chosen"].append(answer["output_ids"])
        found["logprobs"] += [pair[0] for step in answer["meta_info"]["output_top_logprobs"] for pair in step]
    print(json.dumps(found))
    engine.shutdown()


if __name__ == "__main__":
    main()
