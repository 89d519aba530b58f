"""Runs SGLang's offline Engine with settings from a file: `python tree_engine.py JOB.json` prints one JSON object.

The job: `settings` (of the Engine), `prompts`, `tokens`, `turns` (each goes on from the one before), and `streamed`
(numbers of the prompts to take one by one, with a look at their steps).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from pathlib import Path
from typing import Any


def sampling(tokens: int) -> dict[str, Any]:
    """Greedy, of a length."""
    return {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}


async def chunks(engine: Any, prompt: list[int], tokens: int) -> list[int]:
    """Tokens that had arrived after each chunk of a streamed request."""
    made = await engine.async_generate(input_ids=prompt, sampling_params=sampling(tokens), stream=True)
    counts = [chunk["meta_info"]["completion_tokens"] async for chunk in made]
    return sorted(set(counts))


def steps(engine: Any, prompt: list[int], text: list[int]) -> list[list[int]]:
    """[committed by the step after a text, by the first step of a fresh request with that text] pairs.

    What a step commits depends on the draft's cache, which the fresh request has from its prompt alone.
    """
    loop, pairs = engine.loop, []
    counts = loop.run_until_complete(chunks(engine, prompt, len(text)))
    for had, after in itertools.pairwise(counts[:-1]):
        fresh = loop.run_until_complete(chunks(engine, prompt + text[: had - 1], 16))
        pairs.append([after - had, fresh[1] - fresh[0]])
    return pairs


def main() -> None:
    """Run the job."""
    import sglang
    import torch

    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**job["settings"])
    prompts, answers = job["prompts"], []
    for _ in range(job.get("turns", 1)):
        made = engine.generate(input_ids=prompts, sampling_params=sampling(job["tokens"]))
        answers += made
        prompts = [[*asked, *answer["output_ids"], 5, 6] for asked, answer in zip(prompts, made, strict=True)]
    meta = [answer["meta_info"] for answer in answers]
    found: dict[str, Any] = {
        "texts": [answer["output_ids"] for answer in answers],
        "verify": [m.get("spec_verify_ct") for m in meta],
        "correct": [m.get("spec_num_correct_drafts") for m in meta],
        "cached": [m.get("cached_tokens") for m in meta],
    }
    found["steps"] = [
        pair for n in job.get("streamed", []) for pair in steps(engine, job["prompts"][n], found["texts"][n])
    ]
    print("FOUND " + json.dumps(found), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    asyncio.set_event_loop(asyncio.new_event_loop())
    main()
