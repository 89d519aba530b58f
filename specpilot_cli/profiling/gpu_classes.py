"""GPU kernel name → kernel class, for SGLang 0.5.20 on Hopper.

Names were read off the kernels that the stock engine compiled on one H200 (Triton's and the JIT cache's file names) and
off its sources, and checked against traces of whole decode steps (dense 8B with DFLASH, hybrid 27B with DFLASH2).
A matrix product's name says nothing about which projection it is: `gpu_profile.label` tells that from the order of
products.
"""

from __future__ import annotations

import re

GEMM = "gemm"
LM_HEAD = "lm_head"

_RULES: tuple[tuple[str, str], ...] = (
    # of memory entries, by the names in their sources: certified-head, gdn-commit, gdn-path-verify and gdn-wy-verify
    (LM_HEAD, r"\bhead_(bound|finish|rows)_kernel"),
    ("gdn_commit", r"\bgdn_commit_kernel|\bcommit::walk"),
    ("gdn_conv", r"\bgdn_tree_(conv|windows)_kernel"),
    ("copy", r"\bgdn_tree_plant_kernel"),
    ("gdn_recurrence", r"\bverify::solve_tree|\bread::read_tree|\bgdn_tree_|^_verify$"),
    # torch.compile names its kernels after the operators in them: DFLASH2's convolution and candidate scores
    ("draft_conv", r"triton_\w*constant_pad_nd"),
    ("selector", r"triton_\w*(fused_index|cat_expand_index|mul_squeeze_sum|add_permute_unsqueeze)"),
    ("gdn_commit", r"mamba_state|conv_window_scatter|replay_state|track_mamba|fused_slot_(copy|clear)"),
    ("gdn_recurrence", r"delta_rule|gdn_gating|chunk_fwd_kernel_o|recompute_w_u|l2norm_fwd|chunk_local_cumsum"),
    ("gdn_conv", r"causal_conv1d|qkvzba"),
    ("attention_prep", r"kv_indices|num_kv_splits|kv_splits|prepare_varlen|build_page_table|draft_block_metadata"),
    (
        "attention",
        r"flash_fwd|flash_bwd|FlashAttn|fmha|_fwd_grouped_kernel|_fwd_kernel|BatchDecode|BatchPrefill|merge_state|"
        r"verify_attn|unified_attention",
    ),
    ("selector", r"selector_walk|[Tt]op_?[Kk]|radix_?(sort|select|topk)|gatherTopK|sbtopk|bitonicSort"),
    ("sampling", r"[Aa]rg_?[Mm]ax|accept_bonus|[Ss]ampling|softmax|SoftMax|multinomial|verify_tree|build_tree"),
    (GEMM, r"nvjet|[Gg]emm|GEMM|gemv|splitK|split_k|xmma|cublas"),
    ("norm_act", r"[Nn]orm|act_and_mul|activation|silu|SiLU|rope|[Rr]otary|sigmoid_mul"),
    (
        "kv_write",
        r"store_?(kv_?)?cache|kvcache|set_kv_buffer|reshape_and_cache|copy_all_layer_kv|write_req_to_token|req_to_token",
    ),
    (
        "copy",
        r"Mem(cpy|set)|[Cc]opy|CatArray|[Ff]ill|[Ii]ndex|[Gg]ather|[Ss]catter|embedding|position|prepare_dflash|memcpy32",
    ),
)
_COMPILED = tuple((name, re.compile(pattern)) for name, pattern in _RULES)

ACCEPTS = re.compile(r"accept_bonus|verify_tree|[Aa]rg_?[Mm]ax|[Ss]ampling|accept")
"""Kernels that decide what is accepted: the last of them after the target's pass ends the accept phase."""
OPENS_STEP = re.compile(r"prepare_dflash_draft_block|prepare_dspark|prepare_draft_block")
"""Kernels that prepare the next draft block before the draft's pass is marked."""
ATTACHED = re.compile(r"(?i)split_?k_?reduce")
"""Second kernels of a split product."""


def kernel_class(name: str) -> str:
    """Class of a kernel by its name alone; `other` where no rule knows it."""
    return next((found for found, pattern in _COMPILED if pattern.search(name)), "other")
