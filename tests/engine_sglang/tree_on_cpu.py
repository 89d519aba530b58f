"""Lets the draft trees of `tree-core` run on a CPU as well: the target's attention by torch reads their masks."""

from __future__ import annotations

from pathlib import Path

from engine_sglang.drafters_on_cpu import allow_cpu, replace

ATTENTION = '''def _tree(self, query, output, layer, forward_batch):
    """Verification of draft trees: one full mask a request, as the Triton backend reads it."""
    info = forward_batch.spec_info
    mask = getattr(info, "custom_mask", None)
    if not forward_batch.forward_mode.is_target_verify() or mask is None:
        return False
    rows, at = info.draft_token_num, 0
    keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)
    values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)
    for i, prefix in enumerate(forward_batch.seq_lens.tolist()):
        slots = self.req_to_token_pool.req_to_token[forward_batch.req_pool_indices[i], : prefix + rows].long()
        seen = mask[at : at + rows * (prefix + rows)].view(rows, -1).bool().clone()
        seen[:, :prefix] = True
        at += rows * (prefix + rows)
        q = query[i * rows : (i + 1) * rows].transpose(0, 1).unsqueeze(0)
        k, v = (x[slots].transpose(0, 1).unsqueeze(0).to(q.dtype) for x in (keys, values))
        got = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, scale=layer.scaling, enable_gqa=True
        )
        output[i * rows : (i + 1) * rows] = got[0].transpose(0, 1)
    return True


class TorchNativeAttnBackend('''
ASKED = "        self._run_sdpa_forward_extend(\n            q_,"
CHANGES = (
    ("speculative/draft_tree/settings.py", 'BACKENDS = ("triton",)', 'BACKENDS = ("triton", "torch_native")'),
    ("layers/attention/torch_native_backend.py", "class TorchNativeAttnBackend(", ATTENTION),
    (
        "layers/attention/torch_native_backend.py",
        ASKED,
        f"        if _tree(self, q_, o_, layer, forward_batch):\n            return o\n{ASKED}",
    ),
    # drafters in float32, so that texts can be compared
    ("model_executor/model_runner.py", "forward_batch.input_embeds.bfloat16()", "forward_batch.input_embeds"),
)


def allow_trees(worktree: Path) -> None:
    """Change the engine of a worktree that has the entry."""
    allow_cpu(worktree)
    read_masks(worktree)


def read_masks(worktree: Path) -> None:
    """What trees need beyond `allow_cpu`."""
    for name, old, new in CHANGES:
        replace(worktree / "sglang" / "srt" / name, old, new)


KERNELS = (
    ("accept.py", "if not predict.is_cuda:", "if False:"),
    ("rows.py", "if not input_ids.is_cuda:", "if False:"),
    ("compaction.py", "if not source.is_cuda:", "if False:"),
    ("pair_scores.py", "if not base.is_cuda:", "if False:"),
    ("sampler.py", "if ids.is_cuda:", "if True:"),
)


def allow_kernels(worktree: Path) -> None:
    """Run the entry's own kernels and its copies of the selection kernels as well, in Triton's interpreter."""
    for name, old, new in KERNELS:
        replace(worktree / "sglang" / "srt" / "speculative" / "draft_tree" / name, old, new)
