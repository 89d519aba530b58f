"""Lets the entry `tree-hybrid` serve on a CPU, for tests: what trees need there, and what recurrent layers need.

`plain=True`, for long texts, replaces what takes minutes in Triton's interpreter by plain torch: the target's
element-wise kernels, and of the trees' kernels convolution and recurrence, which the contracts of `gdn-path-verify`
compare bit for bit. Commits, windows and the trees' words always run as kernels.
"""

from __future__ import annotations

from pathlib import Path

from engine_sglang.drafters_on_cpu import replace
from engine_sglang.tree_on_cpu import read_masks
from memory.gdn_on_cpu import allow_gdn_on_cpu

RECURRENCE = '''

def _plainly(x, state, slots, parents, scale):
    """[B, N, HV, V]: every row's state from its parent's, as the definition says. state [slots, HV, V, K]."""
    groups = x.v.shape[2] // x.k.shape[2]
    q, k = (
        (y / (y.square().sum(-1, keepdim=True) + 1e-6).sqrt()).repeat_interleave(groups, 2)
        for y in (x.q.float(), x.k.float())
    )
    decay = (-x.a_log.exp() * torch.nn.functional.softplus(x.a.float() + x.dt_bias)).exp()
    beta = x.b.float().sigmoid()
    batch, rows = x.v.shape[:2]
    committed, at = state[slots.long().clamp(min=0)], torch.arange(batch)
    after, out = state.new_zeros(batch, rows, *state.shape[1:]), torch.zeros_like(x.v)
    for row in range(rows):
        parent = parents[:, row].long()
        h = torch.where((parent < 0).view(-1, 1, 1, 1), committed, after[at, parent.clamp(min=0)])
        h = h * decay[:, row, :, None, None]
        u = (x.v[:, row] - torch.einsum("bhvk,bhk->bhv", h, k[:, row])) * beta[:, row, :, None]
        after[:, row] = h + u[..., None] * k[:, row, :, None, :]
        out[:, row] = torch.einsum("bhvk,bhk->bhv", after[:, row], q[:, row]) * scale
    return out


def _convolved(rows, a, b, state, slots, parents, layer, kept, raw, count):
    """As `tree_kernels.convolve`: places -1, -2, -3 of a path are the committed window's columns, the latest first."""
    requests, taps = kept.mixed.shape[0], layer.conv_weights.shape[1]
    raw[: len(rows)], kept.a[:], kept.b[:] = rows, a, b
    before = state[slots[:requests].long().clamp(min=0)].transpose(1, 2)
    line = torch.cat([before, rows.view(requests, count, -1)], 1)
    above = parents[:requests].long()
    at, found = torch.arange(count).expand(requests, -1), 0.0
    for tap in range(taps - 1, -1, -1):
        place = (at + taps - 1).unsqueeze(-1).expand(-1, -1, line.shape[-1])
        found = found + line.gather(1, place) * layer.conv_weights[:, tap]
        at = torch.where(at >= 0, above.gather(1, at.clamp(min=0)), at - 1)
    kept.mixed.copy_(torch.nn.functional.silu(found if layer.bias is None else found + layer.bias))
'''
LAYERS = '''

def _split(qkvz, ba, heads, value_heads, width, height):
    """As `fused_qkvzba_split_reshape_cat_contiguous`."""
    values = value_heads * height
    mixed, z = qkvz.split([qkvz.shape[1] - values, values], 1)
    b, a = (part.contiguous() for part in ba.chunk(2, 1))
    return mixed.contiguous(), z.reshape(-1, value_heads, height).contiguous(), b, a
'''
MODEL = "sglang/srt/models/qwen3_5.py"
PLAIN = (
    ("else fused_qkvzba_split_reshape_cat_contiguous", "else _split"),
    (
        "attn_output = fused_sigmoid_mul(attn_output, gate, inplace=True)",
        "attn_output = attn_output * torch.sigmoid(gate.reshape(gate.shape[0], -1))",
    ),
)
NORM = "sglang/kernels/ops/attention/fla/layernorm_gated.py"
NORMED = """

def _normed(self, x, z):
    unit = (x.square().mean(-1, keepdim=True) + self.eps).rsqrt()
    return x * unit * self.weight * torch.nn.functional.silu(z)


RMSNorm.forward = _normed
"""
ROWS = "sglang/srt/layers/attention/linear/gdn_commit/tree_rows.py"
DECODE = "sglang/srt/layers/attention/linear/kernels/gdn_triton.py"


def allow_hybrid_trees(worktree: Path, *, plain: bool) -> None:
    """Change the engine of a worktree that has the entry."""
    allow_gdn_on_cpu(worktree)
    read_masks(worktree)
    # the interpreter does not know this kernel's alias of `tl.exp`; AR's steps take the general kernel instead
    packed = "supports_packed_decode: bool = not is_cpu() and not is_npu()"
    replace(worktree / DECODE, packed, "supports_packed_decode: bool = False")
    if plain:
        file, launch = worktree / ROWS, "triton_path.verify(x, state, slots, words, scale)"
        replace(file, launch, "_plainly(x, state, slots, self.parents[:requests], scale)")
        replace(file, "        tree_kernels.convolve(\n", "        _convolved(\n")
        for old, new in PLAIN:
            replace(worktree / MODEL, old, new)
        for name, more in ((ROWS, RECURRENCE), (MODEL, LAYERS), (NORM, NORMED)):
            (worktree / name).write_text((worktree / name).read_text() + more)
