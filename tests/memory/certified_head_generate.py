"""Tokens of every kind of request from the SGLang on the import path: `certified_head_generate.py MODEL`.

`test_certified_head.py` runs it in stock and in patched trees. Prints one JSON document; the last of its kinds mixes all
kinds in one batch.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LENGTHS = (8, 20, 33, 70)
GREEDY = {"temperature": 0, "max_new_tokens": 24, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bias": {"logit_bias": {"7": 30.0, "9": -5.0}},
    "penalty": {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
    "sampled": {"temperature": 0.9, "top_p": 0.9},
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
    found: dict[str, Any] = {}
    for kind, words in KINDS.items():
        answers = engine.generate(input_ids=prompts, sampling_params={**GREEDY, **words})
        found[kind] = [a["output_ids"] for a in answers]
    answers = engine.generate(input_ids=prompts, sampling_params=GREEDY, return_logprob=True, top_logprobs_num=2)
    found["logprobs"] = [[list(map(str, item)) for item in a["meta_info"]["output_top_logprobs"]] for a in answers]
    mixed = [{**GREEDY, **words} for words in KINDS.values()]
    found["mixed"] = [a["output_ids"] for a in engine.generate(input_ids=prompts, sampling_params=mixed)]
    print(json.dumps(found))
    engine.shutdown()


if __name__ == "__main__":
    main()
