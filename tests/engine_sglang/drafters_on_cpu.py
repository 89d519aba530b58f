"""Lets SGLang 0.5.20 run DFLASH and DSPARK on a CPU, for tests: slow, eager, and otherwise the engine's own path.

Its Triton kernels run in Triton's interpreter (all of them move integers), attention is `torch_native`'s, taught that
a verify pass brings several rows a request. Scheduler, workers, drafters and counters are as they are.
"""

from __future__ import annotations

from pathlib import Path

FIRST = """import os

os.environ["TRITON_INTERPRET"] = os.environ["TORCHDYNAMO_DISABLE"] = "1"
import torch

torch.Tensor.record_stream = lambda *_: None  # streams of a CPU are none
"""
LENGTHS = '''def _lengths(forward_batch, rows):
    """All rows of a request, those before its new ones, and its new ones."""
    before, new = forward_batch.extend_prefix_lens, forward_batch.extend_seq_lens
    if forward_batch.forward_mode.is_target_verify():
        before = forward_batch.seq_lens
        new = torch.full_like(before, rows // len(before))
        return before + new, before, new
    return forward_batch.seq_lens, before, new


class TorchNativeAttnBackend('''
ASKED = """            forward_batch.seq_lens,
            forward_batch.extend_prefix_lens,
            forward_batch.extend_seq_lens,
"""
CHANGES = (
    ("arg_groups/speculative_hook.py", 'if not cfg.device.startswith(("cuda", "npu")):', "if False:"),
    (
        "arg_groups/speculative_hook.py",
        'if not (\n        cfg.device.startswith("cuda") or cfg.device == "npu" or cfg.device == "xpu"\n    ):',
        "if False:",
    ),
    (
        "arg_groups/choices.py",
        "DRAFT_ATTENTION_BACKEND_CHOICES = [\n",
        'DRAFT_ATTENTION_BACKEND_CHOICES = [\n    "torch_native",\n',
    ),
    ("layers/attention/torch_native_backend.py", "class TorchNativeAttnBackend(", LENGTHS),
    ("layers/attention/torch_native_backend.py", ASKED, "            *_lengths(forward_batch, q_.shape[0]),\n"),
    (
        "speculative/dflash_worker_v2.py",
        "supports_gpu_triton = is_cuda() or is_hip() or is_xpu()",
        "supports_gpu_triton = True",
    ),
)


def allow_cpu(worktree: Path) -> None:
    """Change the engine of a worktree."""
    first = worktree / "sglang" / "__init__.py"
    first.write_text(FIRST + first.read_text())
    for name, old, new in CHANGES:
        replace(worktree / "sglang" / "srt" / name, old, new)
    kernels = worktree / "sglang" / "kernels" / "ops" / "speculative" / "cache_locs.py"
    replace(kernels, "_is_cuda = is_cuda()\n", "_is_cuda = True\n")


def replace(path: Path, old: str, new: str) -> None:
    """Change what stands in a file exactly once."""
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))
