"""A user message as the text the model was tuned on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable


def render_chat(template: str, message: str) -> str:
    """One user message through a chat template (Jinja, as in `tokenizer_config.json`), up to the answer's start."""
    try:
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise EnvironmentUnusable("The package jinja2 is missing.", "", "pip install jinja2") from None
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    messages = [{"role": "user", "content": message}]
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def load_tokenizer(checkpoint: Path) -> Any:
    """The `tokenizers.Tokenizer` of a checkpoint. Raises `InputUnusable` where there is none."""
    from tokenizers import Tokenizer

    path = checkpoint / "tokenizer.json"
    if not path.is_file():
        raise InputUnusable(f"{path}: there is no tokenizer.")
    return Tokenizer.from_file(str(path))


def chat_encoder(checkpoint: Path) -> Callable[[str], list[int]]:
    """Token ids of a user message, by a checkpoint's tokenizer and chat template (plain text where it has none)."""
    tokenizer, template = load_tokenizer(checkpoint), ""
    path = checkpoint / "tokenizer_config.json"
    if path.is_file():
        template = json.loads(path.read_bytes()).get("chat_template", "")

    def encode(message: str) -> list[int]:
        ids: list[int] = tokenizer.encode(render_chat(template, message) if template else message).ids
        return ids

    return encode
