"""Reads model folders: config.json, tokenizer, and the headers of safetensors files. No weight is loaded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.engine.sglang.place import resolve
from specpilot_cli.lint.pair import Checkpoint, Pair, Tensor

INDEX = "model.safetensors.index.json"


def read_pair(target: Path, drafter: Path, server_args: Sequence[str]) -> Pair:
    """Both folders and the engine's flags (`@env:` and `@shape:` as in a deployment file).

    Raises:
        InputUnusable: see `read_checkpoint`. UsageFault: see `engine.sglang.place.resolve`.
    """
    given = resolve(server_args)
    return Pair(read_checkpoint(target), read_checkpoint(drafter), given.flags, given.env)


def read_checkpoint(folder: Path) -> Checkpoint:
    """A model folder.

    Raises:
        InputUnusable: no config.json, or a damaged file.
    """
    config = _json(folder / "config.json")
    if config is None:
        raise InputUnusable(f"{folder}: no config.json.", "", "Give the folder of a Hugging Face model.")
    files = sorted(folder.glob("*.safetensors"))
    tensors: dict[str, Tensor] = {}
    for file in files:
        tensors |= read_headers(file)
    index = _json(folder / INDEX) or {}
    listed = index.get("weight_map")
    absent = sorted(set(listed) - set(tensors)) if isinstance(listed, dict) else []
    return Checkpoint(
        name=folder.name or str(folder),
        config=config,
        tensors=tensors if files else None,
        absent=tuple(absent),
        tokens=_tokens(folder),
    )


def read_headers(file: Path) -> dict[str, Tensor]:
    """Names, shapes and types of a safetensors file.

    Raises:
        InputUnusable: damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as opened:
            found = {}
            for name in opened.keys():  # noqa: SIM118  (no mapping: it has keys() alone)
                part = opened.get_slice(name)
                found[name] = Tensor(tuple(part.get_shape()), str(part.get_dtype()))
            return found
    except (SafetensorError, OSError) as error:
        raise InputUnusable(f"{file}: no readable safetensors file.", str(error)) from None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InputUnusable(f"{path}: cannot be read.", str(error)) from None
    if not isinstance(found, dict):
        raise InputUnusable(f"{path}: not a JSON object.")
    return found


def _tokens(folder: Path) -> frozenset[str] | None:
    """Added tokens of tokenizer.json and tokenizer_config.json; None without a tokenizer."""
    files = [_json(folder / name) for name in ("tokenizer.json", "tokenizer_config.json")]
    if files == [None, None]:
        return None
    found: set[str] = set()
    for document in filter(None, files):
        added = document.get("added_tokens") or document.get("added_tokens_decoder") or []
        for item in added.values() if isinstance(added, dict) else added:
            if isinstance(item, dict) and isinstance(item.get("content"), str):
                found.add(item["content"])
    return frozenset(found)
