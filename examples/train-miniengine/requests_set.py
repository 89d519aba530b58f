"""Held-out prompts as a request set: token ids and text, split into develop and sealed by digest."""

from __future__ import annotations

import hashlib
import json
import random
from typing import Any

from corpus import Corpus
from tokenizers import Tokenizer

LONGEST, SHORTEST = 80, 48


def worth_asking(text: str) -> bool:
    """Not empty space, not a table of numbers, not one line over and over: code or prose with several words."""
    words = {w for w in "".join(c if c.isalpha() else " " for c in text).split() if len(w) > 2}
    letters = sum(c.isalpha() for c in text)
    return len(words) >= 10 and letters >= 0.4 * len(text)


def prompt_in(ids: list[int], tokenizer: Tokenizer, draw: random.Random) -> list[int] | None:
    """A window of 48 to 80 tokens somewhere in a file that is worth asking about; None when none was found."""
    for _ in range(20):
        length = draw.randint(SHORTEST, LONGEST)
        if len(ids) < 3 * length:
            return None
        start = draw.randrange(len(ids) - 2 * length)
        window = ids[start : start + length]
        text = tokenizer.decode(window)
        if "\ufffd" not in text and worth_asking(text) and tokenizer.encode(text).ids == window:
            return window
    return None


def split_of(ids: list[int]) -> str:
    """ "sealed" or "develop", by the digest of the token ids."""
    digest = hashlib.sha256(json.dumps(ids).encode()).digest()
    return "sealed" if digest[0] & 1 else "develop"


def build(corpus: Corpus, tokenizer: Tokenizer, count: int, max_new_tokens: int, seed: int) -> list[dict[str, Any]]:
    """`count` requests from distinct held-out files (fewer when there are fewer usable files)."""
    files = corpus.part(held_out=True)
    draw = random.Random(seed)
    draw.shuffle(files)
    requests: list[dict[str, Any]] = []
    for path, text in files:
        window = prompt_in(tokenizer.encode(text).ids, tokenizer, draw)
        if window is not None:
            requests.append({
                "id": f"stdlib-{len(requests):03d}", "split": split_of(window), "source": path,
                "prompt": tokenizer.decode(window), "input_ids": window, "max_new_tokens": max_new_tokens,
            })  # fmt: skip
        if len(requests) == count:
            break
    return requests
