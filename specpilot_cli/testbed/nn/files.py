"""Checkpoint folders of targets and drafters: config.json and model.safetensors, every tensor by name.

SGLang skips names it does not know and leaves tensors that are missing at random, which looks like a drafter that
accepts nothing; here a missing, unknown or misshapen name is an error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.testbed.nn.block_drafter import BlockConfig, BlockDrafter
from specpilot_cli.testbed.nn.dense import DenseConfig, DenseModel
from specpilot_cli.testbed.nn.eagle3 import EagleConfig, EagleHead
from specpilot_cli.testbed.nn.hybrid import HybridConfig, HybridModel

Module = DenseModel | HybridModel | BlockDrafter | EagleHead


def build(config: dict[str, Any]) -> Module:
    """The module that a `config.json` describes, with random weights.

    Raises:
        InputUnusable: an architecture that the testbed has not.
    """
    name = (config.get("architectures") or ["none"])[0]
    if name == "LlamaForCausalLM":
        return DenseModel(DenseConfig.of(config))
    if name == "Qwen3_5ForCausalLM":
        return HybridModel(HybridConfig.of(config))
    if name in ("DFlash2DraftModel", "Qwen3DSparkModel"):
        return BlockDrafter(BlockConfig.of(config))
    if name == "LlamaForCausalLMEagle3":
        return EagleHead(EagleConfig.of(config))
    raise InputUnusable(f"The architecture {name} is not one of the testbed's.")


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint folder, shards together.

    Raises:
        InputUnusable: there is none, or a file is damaged.
    """
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            tensors |= load_file(path)
        except Exception as error:  # safetensors raises a type of its own
            raise InputUnusable(f"{path}: not a safetensors file.", str(error)) from None
    if not tensors:
        raise InputUnusable(f"{folder}: not a checkpoint folder.", "It has no safetensors file.")
    return tensors


def load(folder: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32) -> Module:
    """A checkpoint folder as a module in evaluation mode, without gradients.

    Raises:
        InputUnusable: a file is missing or damaged, or a tensor's name or shape is not the architecture's.
    """
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise InputUnusable(f"{folder}: not a checkpoint folder.", str(error)) from None
    tensors = read_tensors(folder)
    module = build(config)
    if config.get("tie_word_embeddings") and isinstance(module, DenseModel):
        tensors.setdefault("lm_head.weight", tensors["model.embed_tokens.weight"])
    try:
        module.load_state_dict(tensors, strict=True)
    except RuntimeError as error:
        raise InputUnusable(f"{folder}: its tensors are not those of its config.json.", str(error)) from None
    for parameter in module.parameters():  # the rotary tables are buffers and stay in float32
        parameter.data = parameter.data.to(dtype)
    return module.to(device).eval().requires_grad_(False)


def save(module: nn.Module, config: dict[str, Any], folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write a module in BF16 with its `config.json` and a `manifest.json` (`about` plus the files' digests)."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in module.state_dict().items()}
    if config.get("tie_word_embeddings"):
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    files = {name: sha256_file(folder / name) for name in ("config.json", "model.safetensors")}
    manifest = {**about, "parameters": sum(t.numel() for t in tensors.values()), "files": files}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return manifest
