"""A Llama of 8B shape with random weights, made on the GPU, and the W12 kernel compiled meanwhile."""

from __future__ import annotations

import os
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from specpilot_cli.w12.codec import room

# Llama 3.1 8B; `tiny` is for machines without a GPU
SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
    },
}
HEAD_SPREAD = 3.0  # times the layers' 0.02: margins of some tenths between the best tokens, as a trained model has


def build(shape: str, device: str) -> Any:
    """`LlamaForCausalLM` in BF16, weights Gaussian with a spread of 0.02."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SHAPES[shape], max_position_embeddings=8192, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(before)
    with torch.no_grad():
        model.lm_head.weight.mul_(HEAD_SPREAD)
    return model.requires_grad_(False)


class Compilation(threading.Thread):
    """nvcc in the background; `done` waits and raises what went wrong."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.error = folder, ""
        self.start()

    def run(self) -> None:
        """Through the usual cache, or into `folder` where platformdirs is not installed."""
        build = room("w12_gemm.build")
        try:
            if os.environ.get("SPECPILOT_W12_SO") or find_spec("platformdirs"):
                build.shared_object()
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            made = self.folder / "w12_gemm.so"
            command = [os.environ.get("NVCC", "nvcc"), *build.FLAGS, str(build.HERE / "sm90.cu"), "-o", str(made)]
            subprocess.run(command, check=True, capture_output=True, text=True)
            os.environ["SPECPILOT_W12_SO"] = str(made)
        except (OSError, subprocess.CalledProcessError, RuntimeError) as error:
            self.error = f"{error} {getattr(error, 'stderr', '')}"

    def done(self) -> None:
        """Raises `RuntimeError` where nvcc failed."""
        self.join()
        if self.error:
            raise RuntimeError(self.error)
