"""A small checkpoint of two files: matrices with escapes, tensors that stay as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Folder with two shards and a configuration."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(0)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    one = {
        "model.embed_tokens.weight": weight(256, 96),
        "model.layers.0.mlp.up_proj.weight": weight(300, 200),
        "model.layers.0.norm.weight": weight(96),
        "model.layers.0.bias": torch.arange(3, dtype=torch.int64),
    }
    one["model.layers.0.mlp.up_proj.weight"][7, :4] = torch.tensor([0.0, float("inf"), 1e-39, -3e38])
    two = {"model.layers.1.experts.weight": weight(3, 128, 64), "model.layers.1.odd": torch.zeros(5, dtype=torch.uint8)}
    folder = tmp_path / "source"
    folder.mkdir()
    save_file(one, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    save_file(two, folder / "model-00002-of-00002.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(
        '{"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512, '
        '"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]}'
    )
    return folder
