"""Lets SGLang 0.5.20 serve a small hybrid Gated DeltaNet target with a DFLASH drafter on a CPU, for tests.

Beyond `engine_sglang.drafters_on_cpu`: the verify, convolution, gate and scatter kernels run in Triton's interpreter in
float32; prefill of Gated DeltaNet layers is plain torch, since the chunked kernels do not run there. Scheduler,
workers, pools, backends and acceptance are as they are.
"""

from __future__ import annotations

import json
from pathlib import Path

from engine_sglang.drafters_on_cpu import allow_cpu, replace

FIRST = """import contextlib, types
import torch
import triton.runtime.autotuner

torch.cpu.device = lambda *_: contextlib.nullcontext()
torch.cuda.get_device_properties = lambda *_: types.SimpleNamespace(multi_processor_count=4, major=9, minor=0)


torch.Tensor.pin_memory = lambda self, *_: self
for _name in ("empty", "zeros", "full", "tensor", "arange"):

    def _unpinned(*args, _plain=getattr(torch, _name), pin_memory=False, **kwargs):
        return _plain(*args, **kwargs)

    setattr(torch, _name, _unpinned)


def _first(self, *args, **kwargs):  # nothing to time here
    return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())


triton.runtime.autotuner.Autotuner.run = _first
"""
PREFILL = """def chunk_gated_delta_rule(q, k, v, g, beta, initial_state, initial_state_indices, cu_seqlens, **_):
    def unit(x):
        return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()

    groups, out = v.shape[2] // k.shape[2], torch.zeros_like(v)
    q, k = (unit(x[0].float()).repeat_interleave(groups, 1) for x in (q, k))
    for n, (begin, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())):
        slot = int(initial_state_indices[n])
        h = initial_state[slot].clone()
        for at in range(begin, end):
            h = h * g[0, at].exp()[:, None, None]
            u = (v[0, at].float() - torch.einsum("hvk,hk->hv", h, k[at])) * beta[0, at].float()[:, None]
            h = h + u[:, :, None] * k[at][:, None, :]
            out[0, at] = torch.einsum("hvk,hk->hv", h, q[at]) * k.shape[-1] ** -0.5
        initial_state[slot] = h
    return out, None, None


class TritonGDNKernel("""
RANGE = """

def range(*bounds, _plain=range):  # the interpreter makes none of a tensor
    return _plain(*(int(b.handle.data.item()) if hasattr(b, "handle") else int(b) for b in bounds))
"""
LINEAR = "srt/layers/attention/linear/kernels/gdn_triton.py"
RECURRENT = "kernels/ops/attention/fla/fused_sigmoid_gating_recurrent.py"
SCATTER = "kernels/ops/mamba/mamba_state_scatter_triton.py"
EMBEDDED = "        hidden_states = input_embeds\n        residual: Optional"


CUDA_ONLY = "    assert (\n        get_platform().is_cuda\n        or get_platform().is_musa"


def allow_gdn_on_cpu(worktree: Path) -> None:
    """Change the engine of a worktree."""
    allow_cpu(worktree)
    package = worktree / "sglang"
    first = package / "__init__.py"
    text = first.read_text()
    marker = "import torch\n"
    assert text.count(marker) >= 1
    first.write_text(text.replace(marker, FIRST, 1))
    replace(package / LINEAR, "class TritonGDNKernel(", PREFILL)
    recurrent = package / RECURRENT
    recurrent.write_text(recurrent.read_text() + RANGE)
    replace(package / SCATTER, "if not dst.is_cuda or not src.is_cuda:", "if False:")
    replace(package / SCATTER, "if not (dst.is_cuda and src.is_cuda and dst.device == src.device):", "if False:")
    anywhere = CUDA_ONLY.replace("get_platform().is_cuda", "True")
    replace(package / "srt/arg_groups/mamba_hook.py", CUDA_ONLY, anywhere)
    # the worker hands the drafter rows in BF16, whatever the type of the weights
    weights = "self.layers[0].self_attn.qkv_proj.weight.dtype"
    replace(package / "srt/models/dflash.py", EMBEDDED, EMBEDDED.replace("input_embeds", f"input_embeds.to({weights})"))


BASE = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
    "tie_word_embeddings": False,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
    "rope_theta": 10000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
TARGET = {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "attn_output_gate": True,
    "attention_bias": False,
    "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25},
    "mamba_ssm_dtype": "float32",
    "eos_token_id": 255,
    "num_experts": 0,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
DRAFTER = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "num_target_layers": 4,
    "block_size": 4,
    "dflash_config": {"target_layer_ids": [0, 1, 2], "mask_token_id": 254},
}


def write_models(folder: Path) -> None:
    """Configurations of a target and a drafter; weights are drawn by the engine (`--load-format dummy`)."""
    for name, config in (("target", TARGET), ("drafter", DRAFTER)):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text(json.dumps(BASE | config))
