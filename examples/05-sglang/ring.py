"""A target and two drafters whose acceptance is known by construction: no training, no download.

The target's text runs round a ring of 16 tokens: attention and MLP add nothing, so that a token's embedding (one
coordinate) reaches the LM head, which names the next token. The drafters' rows offer all 16, and the pairwise head
(DFLASH2's selector, DSPARK's Markov head) says which one follows, wrongly behind two of the 16. So every step's
accepted drafts follow from its anchor, and they vary.
"""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

RING, WRONG, VOCAB, MASK, LAYERS = 16, (2, 12), 256, 255, 4
"""Tokens of the ring; places in it behind which the drafters are wrong; vocabulary; mask token; the target's layers."""
TOP, BELIEF = 64.0, 100.0
"""Logit of the target's next token; score that the pairwise head adds to the token that it believes in."""


@dataclass(frozen=True)
class Ring:
    """The tokens in their order, and what the drafters believe."""

    hidden: int = 4096
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    order: list[int] = field(default_factory=lambda: random.Random(5).sample(range(VOCAB - 1), RING))

    def after(self, token: int) -> int:
        """The target's next token."""
        if token in self.order:
            return self.order[(self.order.index(token) + 1) % RING]
        return self.order[token % RING]

    def believed(self, token: int) -> int:
        """The drafters' next token: one too far behind the tokens at `WRONG`."""
        right = self.after(token)
        wrong = token in self.order and self.order.index(token) in WRONG
        return self.after(self.after(right)) if wrong else right

    def text(self, token: int, count: int) -> list[int]:
        """The target's greedy tokens behind a token."""
        found = [token]
        for _ in range(count):
            found.append(self.after(found[-1]))
        return found[1:]

    def accepted(self, anchor: int, depth: int) -> int:
        """Drafts of a block that the target accepts."""
        count = 0
        while count < depth and self.believed(anchor) == self.after(anchor):
            anchor, count = self.after(anchor), count + 1
        return count


def write(ring: Ring, folder: Path) -> None:
    """`target`, `dflash2` and `dspark` below `folder`, in bfloat16, as SGLang 0.5.20 reads them."""
    import torch

    wide = torch.zeros(VOCAB, ring.hidden)
    wide[torch.arange(VOCAB - 1), torch.arange(VOCAB - 1)] = 1.0
    weights = [1 + i / 64 for i in range(RING)]
    wide[MASK, torch.tensor(ring.order)] = torch.tensor(weights)
    head = torch.zeros(VOCAB, ring.hidden)
    for token in range(VOCAB - 1):
        head[ring.after(token), token] = TOP / math.sqrt(ring.hidden)
    target = {"model.embed_tokens.weight": wide, "lm_head.weight": head, **_layers(ring, "model.")}
    _save(folder / "target", _config(ring, "Qwen3ForCausalLM", LAYERS), target)
    shared = {"fc.weight": torch.zeros(ring.hidden, 2 * ring.hidden), "hidden_norm.weight": torch.ones(ring.hidden)}
    belief = torch.zeros(VOCAB, RING)
    for token in range(VOCAB - 1):
        belief[token, ring.order.index(ring.believed(token))] = BELIEF
    place = torch.zeros(VOCAB, RING)
    place[torch.tensor(ring.order), torch.arange(RING)] = 1.0
    row = math.sqrt(ring.hidden) * weights[0] / math.sqrt(sum(w * w for w in weights))  # a mask row's first coordinate
    ones = torch.zeros(RING, ring.hidden)
    ones[:, ring.order[0]] = 1 / row
    selector = {"predecessor_codebook": belief, "successor_codebook": place, "hidden_projection.weight": ones}
    markov = {"markov_w1.weight": belief, "markov_w2.weight": place}
    layers, places = {**_layers(ring, ""), **shared}, {"target_layer_ids": [0, 1], "mask_token_id": MASK}
    common = {"num_target_layers": LAYERS, "dflash_config": places}
    dflash2 = {"block_size": 8, "dflash_config": {**places, "selector_rank": RING, "selector_top_k": RING}}
    dspark = {"block_size": 7, "markov_rank": RING, "markov_head_type": "vanilla", **places}
    for name, architecture, more, tensors in (
        ("dflash2", "DFlash2DraftModel", dflash2, {f"candidate_selector.{k}": v for k, v in selector.items()}),
        ("dspark", "Qwen3DSparkModel", dspark, {f"markov_head.{k}": v for k, v in markov.items()}),
    ):
        _save(folder / name, {**_config(ring, architecture, 1), **common, **more}, {**layers, **tensors})


def _layers(ring: Ring, prefix: str) -> dict[str, Any]:
    """Layers that add nothing, and a final norm. All layers share their (zero) matrices."""
    import torch

    q, kv, mlp = ring.heads * ring.head_dim, ring.kv_heads * ring.head_dim, 4 * ring.head_dim
    shapes = {"self_attn.q_proj": (q, ring.hidden), "self_attn.k_proj": (kv, ring.hidden)}
    shapes |= {"self_attn.v_proj": (kv, ring.hidden), "self_attn.o_proj": (ring.hidden, q)}
    shapes |= {
        "mlp.gate_proj": (mlp, ring.hidden),
        "mlp.up_proj": (mlp, ring.hidden),
        "mlp.down_proj": (ring.hidden, mlp),
    }
    norms = {"self_attn.q_norm": ring.head_dim, "self_attn.k_norm": ring.head_dim}
    norms |= {"input_layernorm": ring.hidden, "post_attention_layernorm": ring.hidden}
    found = {f"{prefix}norm.weight": torch.ones(ring.hidden)}
    for layer in range(LAYERS if prefix else 1):
        found |= {f"{prefix}layers.{layer}.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}
        found |= {f"{prefix}layers.{layer}.{name}.weight": torch.ones(size) for name, size in norms.items()}
    return found


def _config(ring: Ring, architecture: str, layers: int) -> dict[str, Any]:
    sizes = {"hidden_size": ring.hidden, "num_attention_heads": ring.heads, "num_key_value_heads": ring.kv_heads}
    return {
        "architectures": [architecture], "model_type": "qwen3", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "num_hidden_layers": layers, **sizes, "head_dim": ring.head_dim, "intermediate_size": 4 * ring.head_dim,
        "rms_norm_eps": 1e-6, "rope_theta": 1000000, "max_position_embeddings": 4096, "vocab_size": VOCAB,
        "attention_bias": False, "tie_word_embeddings": False, "eos_token_id": VOCAB - 2, "bos_token_id": VOCAB - 2,
    }  # fmt: skip


def _save(folder: Path, config: dict[str, Any], tensors: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file({name: t.to(torch.bfloat16).contiguous() for name, t in tensors.items()}, folder / "model.safetensors")
