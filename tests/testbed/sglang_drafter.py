"""Drafter checkpoints through SGLang 0.5.20's own model classes on a CPU: `python sglang_drafter.py JOB.json`.

The classes load the checkpoint as the engine would; only the attention kernel is replaced by a plain one over keys and
values that are at hand (RadixAttention needs a KV pool). Prints the greedy proposals of each block as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"

import torch
from safetensors.torch import load_file
from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.utils.hf_transformers_utils import get_config
from torch import Tensor, nn


class Kept(nn.Module):
    """Attention over kept keys and values and the new rows; `causal` rows see only what is not behind them."""

    def __init__(self, heads: int, kv_heads: int, size: int, causal: bool) -> None:
        super().__init__()
        self.shape, self.causal = (heads, kv_heads, size), causal
        self.k = self.v = torch.zeros(0, kv_heads, size)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
        """Rows [T, heads * D]; causal ones are kept for the next call, as an engine's pool would."""
        heads, kv_heads, size = self.shape
        k = torch.cat((self.k, k.view(-1, kv_heads, size)))
        v = torch.cat((self.v, v.view(-1, kv_heads, size)))
        rows = q.view(-1, heads, size)
        wide_k, wide_v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        scores = torch.einsum("rhd,chd->hrc", rows, wide_k) * size**-0.5
        if self.causal:
            hidden = torch.ones(len(rows), len(k), dtype=torch.bool).triu(len(k) - len(rows) + 1)
            scores = scores.masked_fill(hidden, float("-inf"))
            self.k, self.v = k, v
        return torch.einsum("hrc,chd->rhd", scores.softmax(-1), wide_v).flatten(1)


def replace_attention(layers: Any, causal: bool) -> None:
    """In place."""
    for layer in layers:
        a = layer.self_attn
        a.attn = Kept(a.num_heads, a.num_kv_heads, a.head_dim, causal)


def model_of(folder: str, kind: Any) -> Any:
    """The engine's model with the checkpoint's weights, in float32."""
    config = get_config(folder, trust_remote_code=False)
    model = kind(config)
    model.load_weights(iter((n, t.float()) for n, t in load_file(f"{folder}/model.safetensors").items()))
    return model.float().eval()


def block_proposals(model: Any, embedding: Tensor, head: Tensor, job: dict[str, Any], config: dict[str, Any]) -> Any:
    """One block: context keys and values as the worker writes them, the block's rows, the head's walk."""
    features, anchor, rows = torch.tensor(job["features"]), job["anchor"], job["rows"]
    context = model.project_target_hidden(features)
    before = torch.arange(len(features))
    for layer in model.layers:
        a = layer.self_attn
        k, v = a.kv_proj_only(context)
        k = a.apply_k_rope(before, a.apply_k_norm(k))
        a.attn.k, a.attn.v = (x.view(-1, a.num_kv_heads, a.head_dim) for x in (k, v))
    ids = torch.tensor([anchor] + [config["dflash_config"]["mask_token_id"]] * (rows - 1))
    if hasattr(model, "set_block_size"):
        model.set_block_size(rows)
    out = model(ids, len(features) + torch.arange(rows), None, input_embeds=embedding[ids]).hidden_states
    anchors = torch.tensor([anchor])
    if model.candidate_selector is None:
        tokens, _ = model.markov_head.sample_block(
            (out @ head.T)[None], first_prev_tokens=anchors, hidden_states=None,
            sampler=lambda logits, _: logits.argmax(-1),
        )  # fmt: skip
        return tokens[0].tolist()
    model.lm_head = SimpleNamespace(weight=head, org_vocab_size=len(head), quant_method=None)
    candidates, unary = model.compute_candidates(out[1:])
    scores = model.candidate_selector.build_lattice(
        candidate_ids=candidates[None], unary_logits=unary[None], hidden_states=out[None, 1:], anchor_token_ids=anchors
    )
    tokens, _ = model.candidate_selector.sample_path(
        candidate_ids=candidates[None], scores=scores, uniforms=torch.rand(1, rows - 1),
        temperatures=torch.ones(1), greedy_mask=torch.ones(1, dtype=torch.bool),
    )  # fmt: skip
    return tokens[0].tolist()


def eagle_proposals(model: Any, embedding: Tensor, head: Tensor, job: dict[str, Any]) -> list[int]:
    """A greedy chain: the known rows at once, then one row a draft."""
    hidden, tokens = torch.tensor(job["features"]), torch.tensor(job["tokens"])
    places, drafts = torch.arange(len(tokens)), []
    for _ in range(job["rows"]):
        batch = SimpleNamespace(spec_info=SimpleNamespace(hidden_states=hidden))
        normed, (raw,) = model.model(tokens, places, batch, input_embeds=embedding[tokens])
        drafts.append(int((head @ normed[-1]).argmax()))
        hidden, tokens, places = raw[-1:], torch.tensor(drafts[-1:]), places[-1:] + 1
    return drafts


@torch.no_grad()
def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    set_global_server_args_for_scheduler(ServerArgs(model_path=job["target"], device="cpu"))
    init_distributed_environment(1, 0, f"file://{job['rendezvous']}", 0, "gloo")
    initialize_model_parallel()
    config = json.loads((Path(job["folder"]) / "config.json").read_text())
    from sglang.srt.models.dflash import DFlash2DraftModel
    from sglang.srt.models.dspark import Qwen3DSparkModel
    from sglang.srt.models.llama_eagle3 import LlamaForCausalLMEagle3

    kinds = {kind.__name__: kind for kind in (DFlash2DraftModel, Qwen3DSparkModel, LlamaForCausalLMEagle3)}
    kind = kinds[config["architectures"][0]]
    model = model_of(job["folder"], kind)
    shared = load_file(f"{job['target']}/model.safetensors")
    embedding, head = shared["model.embed_tokens.weight"].float(), shared["lm_head.weight"].float()
    found = []
    for block in job["blocks"]:
        eagle = kind is LlamaForCausalLMEagle3
        replace_attention(model.model.layers if eagle else model.layers, eagle)
        run = eagle_proposals if eagle else lambda m, e, h, b: block_proposals(m, e, h, b, config)
        found.append(run(model, embedding, head, block))
    print("FOUND " + json.dumps(found))


if __name__ == "__main__":
    main()
