"""Tokens of every kind of request from the SGLang on the import path: `certified_head_generate.py MODEL`.

`test_certified_head.py` runs it in stock and in patched trees. One request at a time, so that every
run has the same batches. Prints one JSON document: for each kind and prompt the tokens (`ids`), those of the same
request with log-probabilities (`told`), and the two best log-probabilities of every step of the latter (`best`).
"""

from __future__ import annotations

import json
import sys
from typing import Any

LENGTHS, SEED, TOKENS = (8, 33, 70, 12, 50, 25), 29, 12
GREEDY = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "bias": {"logit_bias": {"7": 30.0, "9": -5.0}},
    # one penalty: stock applies several in the order of a set of classes, which differs from process to process
    "penalty": {"repetition_penalty": 1.6},
    "sampled": {"temperature": 0.02},  # nearly an argmax
}


def main() -> None:
    """Start the engine, generate, print."""
    import sglang
    import torch

    flags: dict[str, Any] = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
    flags |= {"dtype": "bfloat16", "skip_tokenizer_init": True, "max_total_tokens": 8192, "context_length": 1024}
    flags |= {"grammar_backend": "none", "random_seed": 0, "log_level": "info", "disable_overlap_schedule": True}
    flags["disable_radix_cache"] = True  # every request is read anew
    engine = sglang.Engine(model_path=sys.argv[1], **flags)
    generator = torch.Generator().manual_seed(SEED)
    prompts = [torch.randint(2, 512, (n,), generator=generator).tolist() for n in LENGTHS]
    found: dict[str, Any] = {kind: [] for kind in KINDS}
    for prompt in prompts:
        for kind, words in KINDS.items():
            asked: dict[str, Any] = {"input_ids": prompt, "sampling_params": {**GREEDY, **words}}
            plain = engine.generate(**asked)
            told = engine.generate(**asked, return_logprob=True, top_logprobs_num=2)
            best = [[pair[0] for pair in step] for step in told["meta_info"]["output_top_logprobs"]]
            found[kind].append({"ids": plain["output_ids"], "told": told["output_ids"], "best": best})
    print(json.dumps(found))
    engine.shutdown()


if __name__ == "__main__":
    main()
