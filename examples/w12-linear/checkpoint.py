"""Gaussian weights of a Qwen3 shape as a checkpoint: `python checkpoint.py FOLDER`, 16 GB for the 8B shape."""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors.torch import save_file

SHAPE = Path(__file__).resolve().parents[2] / "profiles" / "deployments" / "shapes" / "dense8b"
SPREAD, HEAD_SPREAD = 0.02, 0.06  # of a trained model's size; the head's leaves margins of some tenths of a nat
LAYERS_A_FILE = 4


def layer(index: int, config: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer."""
    hidden, mlp, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (mlp, hidden),
        "mlp.up_proj": (mlp, hidden),
        "mlp.down_proj": (hidden, mlp),
        "self_attn.q_norm": (head,),
        "self_attn.k_norm": (head,),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"model.layers.{index}.{name}.weight": shape for name, shape in shapes.items()}


def write(folder: Path, number: int, shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """One file; which tensors are in it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(number)
    name, tensors = f"model-{number:05d}.safetensors", {}
    for tensor, shape in shapes.items():
        if len(shape) == 1:
            tensors[tensor] = torch.ones(shape, dtype=torch.bfloat16)
            continue
        spread = HEAD_SPREAD if tensor == "lm_head.weight" else SPREAD
        made = torch.randn(shape, generator=generator, device=device) * spread
        tensors[tensor] = made.bfloat16().cpu()
    save_file(tensors, folder / name)
    return dict.fromkeys(shapes, name)


def main() -> None:
    """All files, in four threads, and the index."""
    begin, folder = time.perf_counter(), Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    text = (SHAPE / "config.json").read_text()
    config = json.loads(text)
    (folder / "config.json").write_text(text)
    count, vocabulary, hidden = config["num_hidden_layers"], config["vocab_size"], config["hidden_size"]
    parts: list[dict[str, tuple[int, ...]]] = [{"lm_head.weight": (vocabulary, hidden)}]
    parts.append({"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)})
    for first in range(0, count, LAYERS_A_FILE):
        group = (layer(i, config) for i in range(first, min(first + LAYERS_A_FILE, count)))
        parts.append({name: shape for shapes in group for name, shape in shapes.items()})
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda item: write(folder, *item), enumerate(parts, 1)))
    index = {"metadata": {}, "weight_map": {k: v for part in found for k, v in part.items()}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(f"{size / 1e9:.1f} GB in {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
