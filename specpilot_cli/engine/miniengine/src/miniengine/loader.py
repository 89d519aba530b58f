"""Load a checkpoint directory: config.json, target.safetensors, drafter_*.safetensors, tokenizer.json."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file

from .config import ConfigError, load_config
from .drafter import Drafter
from .model import Model


def checkpoint_digest(directory: Path) -> str:
    """sha256 over "name, sha256 of its bytes" lines of the checkpoint's files, in name order."""
    whole = hashlib.sha256()
    names = ("config.json", "tokenizer.json", *sorted(p.name for p in directory.glob("*.safetensors")))
    for name in names:
        path = directory / name
        if path.is_file():
            whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _fill(module: torch.nn.Module, path: Path, dtype: torch.dtype) -> None:
    """Load every weight; a missing, unknown or misshapen name is an error (a silent one would pin tau at 1)."""
    if not path.is_file():
        raise ConfigError(f"{path} is missing")
    try:
        module.load_state_dict({k: v.to(dtype) for k, v in load_file(path).items()}, strict=True)
    except RuntimeError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    except Exception as error:  # safetensors raises its own type for damaged files
        raise ConfigError(f"{path}: not a safetensors file ({error})") from error


def load(directory: Path, algorithm: str | None, dtype: torch.dtype) -> tuple[Model, Drafter | None]:
    """The target and, if named, one drafter, in `dtype`; ConfigError says what is wrong."""
    config, drafters = load_config(directory)
    chosen = None
    if algorithm is not None:
        if algorithm not in drafters:
            raise ConfigError(f"{directory} has no drafter {algorithm}; it has: {', '.join(drafters) or 'none'}")
        chosen = drafters[algorithm]
    model = Model(config, chosen.target_layer_ids if chosen else ()).to(dtype).eval()
    _fill(model, directory / "target.safetensors", dtype)
    drafter = None
    if chosen is not None:
        drafter = Drafter(chosen, config).to(dtype).eval()
        _fill(drafter, directory / f"drafter_{chosen.algorithm.lower()}.safetensors", dtype)
    return model.requires_grad_(False), drafter.requires_grad_(False) if drafter else None
