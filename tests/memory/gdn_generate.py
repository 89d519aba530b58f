"""Texts of three requests and the log-probability of every token, from the SGLang on the import path.

`gdn_generate.py MODELS [radix]`: the folder of `gdn_on_cpu.write_models`. Prints one JSON document in the last line.
radix: long prompts and a second turn, whose prefixes the radix cache takes up with states tracked while decoding.
"""

from __future__ import annotations

import json
import sys

PROMPTS = [[3, 5, 7, 9], [11, 13], [17, 19, 23, 29, 31]]
LONG = [[(7 * i + 3 * j) % 250 for j in range(52 + i)] for i in range(3)]  # 64 tokens are passed while decoding
CACHED = {
    "disable_radix_cache": False,
    "mamba_radix_cache_strategy": "extra_buffer",
    "max_mamba_cache_size": 24,
    "mamba_track_interval": 8,
}
TOKENS = 20


def main() -> None:
    from sglang.srt.entrypoints.engine import Engine

    folder, radix = sys.argv[1], sys.argv[2:] == ["radix"]
    engine = Engine(
        model_path=f"{folder}/target",
        speculative_draft_model_path=f"{folder}/drafter",
        load_format="dummy",
        speculative_draft_load_format="dummy",
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        speculative_draft_attention_backend="torch_native",
        sampling_backend="pytorch",
        grammar_backend="none",
        linear_attn_backend="triton",
        skip_tokenizer_init=True,
        max_total_tokens=1024,
        context_length=256,
        max_running_requests=3,
        random_seed=0,
        speculative_algorithm="DFLASH",
        speculative_dflash_block_size=4,
        page_size=1,
        min_free_slots_delay=1,
        **(CACHED if radix else {"disable_radix_cache": True}),
    )
    sampling = {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}
    found, prompts = [], LONG if radix else PROMPTS
    for _ in range(2 if radix else 1):
        answers = engine.generate(input_ids=prompts, sampling_params=sampling, return_logprob=True)
        for answer in answers:
            meta = answer["meta_info"]
            logprobs = [item[0] for item in meta["output_token_logprobs"]]
            one = {"ids": answer["output_ids"], "logprobs": logprobs, "steps": meta["spec_verify_ct"]}
            found.append(one | {"cached": meta["cached_tokens"]})
        prompts = [[*asked, *answer["output_ids"], 5, 6, 7] for asked, answer in zip(prompts, answers, strict=True)]
    engine.shutdown()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
