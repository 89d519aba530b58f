"""A tiny random target with a tokenizer of its own, so that every stage runs without a download."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from prompts import beginning, closing

from specpilot_cli.testbed.nn.files import build, save

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<mask>"]


def write_tokenizer(folder: Path, vocabulary: int) -> Any:
    """Byte-level BPE over made-up messages; the special tokens come first."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    draw = random.Random(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([closing(beginning(draw), draw) for _ in range(500)], trainer)
    made.save(str(folder / "tokenizer.json"))
    return made


def tiny_target(folder: Path, seed: int = 0) -> Path:
    """A Llama of 6 layers and hidden size 48. Its answers are nonsense, but they are its own."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = write_tokenizer(folder, 400)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 6, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 16,
        "vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 2, "bos_token_id": 1,
    }  # fmt: skip
    torch.manual_seed(seed)
    save(build(config), config, folder, {"what": "random weights for a smoke run"})
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder
