"""The training text: user messages and greedy answers, both written by the target, in batches that can be resumed."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from prompts import Known, beginning, closing, ended
from recipe import Recipe

from specpilot_cli.testbed.chat import load_tokenizer, render_chat
from specpilot_cli.testbed.nn.acceptance import Texts
from specpilot_cli.testbed.nn.generate import Generator, greedy, sampler

MARK = "\u0001message\u0001"
PROMPT_ROOM = 256
"""Longer prompts are left out of the training text."""
SECONDS = "texts-seconds.txt"


@dataclass(frozen=True)
class Chat:
    """Tokenizer and chat template of a checkpoint."""

    tokenizer: Any
    before: str
    after: str
    stop: int

    @classmethod
    def of(cls, checkpoint: Path) -> Chat:
        """Read from a checkpoint folder."""
        template = json.loads((checkpoint / "tokenizer_config.json").read_bytes())["chat_template"]
        before, _, after = render_chat(template, MARK).partition(MARK)
        stop = json.loads((checkpoint / "config.json").read_bytes())["eos_token_id"]
        return cls(load_tokenizer(checkpoint), before, after, stop)

    def open(self, start: str) -> list[int]:
        """A message that is not finished."""
        ids: list[int] = self.tokenizer.encode(self.before + start).ids
        return ids

    def prompt(self, message: str) -> list[int]:
        """A whole message, up to where the answer starts."""
        ids: list[int] = self.tokenizer.encode(self.before + message + self.after).ids
        return ids


def pairs_of(
    generator: Generator, chat: Chat, messages: list[str], new_tokens: int, room: int
) -> list[tuple[list[int], list[int]]]:
    """Prompts and greedy answers; a prompt over `room` tokens is left out."""
    prompts = [ids for ids in map(chat.prompt, messages) if len(ids) <= room]
    answers: list[list[int]] = []
    for at in range(0, len(prompts), generator.batch):
        answers += generator.run(prompts[at : at + generator.batch], new_tokens, greedy, chat.stop)
    return list(zip(prompts, answers, strict=True))


def messages_of(generator: Generator, chat: Chat, recipe: Recipe, batch: int, known: Known) -> list[str]:
    """One batch of user messages, begun here and continued by sampling."""
    draw = random.Random(recipe.seed * 1_000_003 + batch)
    starts = [beginning(draw) for _ in range(recipe.batch)]
    choose = sampler(recipe.seed + batch, generator.cache.k.device, recipe.top_k, recipe.temperature)
    written = generator.run([chat.open(s) for s in starts], recipe.message_tokens, choose, chat.stop)
    texts = [chat.tokenizer.decode([i for i in ids if i != chat.stop]) for ids in written]
    whole = [start + text for start, text in zip(starts, texts, strict=True)]
    whole = [text if ids[-1] == chat.stop else ended(text) for text, ids in zip(whole, written, strict=True)]
    messages = [closing(text, draw) for text in whole]
    return [m for m in messages if m and not known.holds(m)]


def tag(recipe: Recipe) -> str:
    """Of everything that decides what a batch says; texts of another recipe are never taken for this one's."""
    names = ("seed", "batch", "message_tokens", "top_k", "temperature", "new_tokens", "shortest_answer")
    said = json.dumps([recipe.to_json()[name] for name in names])
    return hashlib.sha256(said.encode()).hexdigest()[:8]


def write_texts(
    recipe: Recipe,
    generator: Generator,
    chat: Chat,
    known: Known,
    work: Path,
    minutes: float | None = None,
    part: tuple[int, int] = (1, 1),
) -> list[Path]:
    """All batches under `work`, or those that `minutes` were enough for; what is there already is kept.

    A batch depends on the recipe and its number alone, so several processes can write `part` (k, n) each: every n-th.
    The seconds of every batch are added up in `work/texts-seconds.txt`, so that a resumed run can still tell them.
    """
    count, begun = -(-recipe.texts // recipe.batch), time.perf_counter()
    paths = [work / f"texts-{tag(recipe)}-{i:04d}.json" for i in range(count)]
    for index, path in enumerate(paths):
        if path.exists() or index % part[1] != part[0] - 1:
            continue
        started = time.perf_counter()
        if minutes is not None and index and started - begun > 60 * minutes:
            print(f"texts: {minutes} minutes are over before batch {index + 1} of {count}", flush=True)
            break
        messages = messages_of(generator, chat, recipe, index, known)
        pairs = pairs_of(generator, chat, messages, recipe.new_tokens, PROMPT_ROOM)
        kept = [pair for pair in pairs if len(pair[1]) >= recipe.shortest_answer]
        path.with_suffix(".tmp").write_text(json.dumps(kept))
        path.with_suffix(".tmp").replace(path)
        tokens, seconds = sum(len(a) for _, a in pairs), time.perf_counter() - started
        with open(work / SECONDS, "a") as file:
            file.write(f"{path.name} {seconds:.2f}\n")
        print(f"texts {index + 1}/{count}: {len(kept)} kept, {tokens / seconds:,.0f} answer tokens/s", flush=True)
    return [path for path in paths if path.exists()]


def written_s(work: Path) -> float:
    """Seconds that all texts under `work` took, whichever run wrote them."""
    path = work / SECONDS
    return sum(float(line.split()[1]) for line in path.read_text().splitlines()) if path.exists() else 0.0


def texts_of(pairs: list[tuple[list[int], list[int]]]) -> Texts:
    """Padded on the right."""
    rows = [[*prompt, *answer] for prompt, answer in pairs]
    ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = torch.tensor(row)
    first = torch.tensor([len(prompt) for prompt, _ in pairs])
    return Texts(ids, first, torch.tensor([len(row) for row in rows]))


def load_texts(paths: list[Path], held_out: int) -> tuple[Texts, Texts]:
    """Training texts and `held_out` others, none of whose prompts is trained on."""
    pairs = [(p, a) for path in paths for p, a in json.loads(path.read_text())]
    if len(pairs) <= 2 * held_out:
        raise SystemExit(f"only {len(pairs)} usable texts came out; {held_out} are to be held out")
    held = pairs[-held_out:]
    taken = {tuple(prompt) for prompt, _ in held}
    train = [pair for pair in pairs[:-held_out] if tuple(pair[0]) not in taken]
    return texts_of(train), texts_of(held)


def benchmark_texts(
    folder: Path, read: Callable[[list[str]], list[tuple[list[int], list[int]]]]
) -> dict[str, list[tuple[list[int], list[int]]]]:
    """Prompts and answers of every local JSONL in `folder`, by file name."""
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        found[path.stem] = read([json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()])
    return found
