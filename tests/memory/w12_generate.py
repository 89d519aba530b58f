"""Greedy tokens and log-probabilities of a model in the SGLang on the import path: `w12_generate.py MODEL METHOD`.

`test_w12_linear.py` runs it in stock and in patched trees. Prints one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

LENGTHS = (8, 20, 33, 300)
TOKENS = 24


def main() -> None:
    """Start the engine, generate, print."""
    import sglang
    import torch

    model, method = sys.argv[1:]
    flags: dict[str, Any] = {"device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch"}
    flags |= {"dtype": "bfloat16", "skip_tokenizer_init": True, "max_total_tokens": 8192, "context_length": 1024}
    flags |= {"grammar_backend": "none", "random_seed": 0, "quantization": None if method == "none" else method}
    flags["log_level"] = "info"  # as a server's, to stderr
    engine = sglang.Engine(model_path=model, **flags)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(2, 512, (n,), generator=generator).tolist() for n in LENGTHS]
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    answers = engine.generate(input_ids=prompts, sampling_params=sampling, return_logprob=True)
    found = [
        {"ids": a["output_ids"], "logprobs": [item[0] for item in a["meta_info"]["output_token_logprobs"]]}
        for a in answers
    ]
    print(json.dumps(found))
    engine.shutdown()


if __name__ == "__main__":
    main()
