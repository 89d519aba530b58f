"""Builds a stand-in: a trained core inside a full-size model whose other weights are random and add nothing.

- Inert layers and inert channels are tiny row by row (2^-40 of a usual row), so that they vanish in any sum.
- Beside a core's columns stand columns of 2^-8 to 2^-6 of their size; they read channels that hold nothing.
- Unused vocabulary rows of the LM head are tiny: their logits are zero, and a core trained against a bank of zero
  logits beats them. For another core (SmolLM2) its largest logit has to be above zero; `max_logits` looks.
Placement and why it is exact: `placement`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specpilot_cli.core.digest import sha256_file
from specpilot_cli.testbed.nn.files import build, read_tensors
from specpilot_cli.testbed.nn.placement import HEAD_NORMS, STREAM_NORMS, Placement, Rule, placed_layers

TINY = 2.0**-40
BESIDE = (-8.0, -6.0)
"""log2 of the size of the columns beside a core's, relative to it; none is close to zero, so no window is left."""
ROW_SPREAD = 0.3
"""Standard deviation of the log of the rows' scales."""
SHARD_BYTES = 2 * 10**9
WRITERS = 8
"""Shards that are copied from the GPU and written at a time."""


class Filler:
    """Random weights with the spread of trained ones, seeded by the tensor's name."""

    def __init__(self, seed: int, device: str | torch.device) -> None:
        self.seed, self.device = seed, torch.device(device)

    def generator(self, name: str) -> torch.Generator:
        """Of one tensor, so that the order of building does not matter."""
        mixed = sum(ord(c) * 1_000_003 ** (i % 7) for i, c in enumerate(name)) + self.seed
        return torch.Generator(device=self.device).manual_seed(mixed % 2**63)

    def normal(self, shape: torch.Size, scale: float, draw: torch.Generator) -> Tensor:
        """Gaussian times a log-normal scale for each row, BF16."""
        rows = torch.randn(shape[0], generator=draw, device=self.device).mul_(ROW_SPREAD).exp_().mul_(scale)
        made = torch.randn(shape, generator=draw, device=self.device, dtype=torch.bfloat16)
        return made.mul_(rows.bfloat16().view(-1, *[1] * (len(shape) - 1)))

    def beside(self, shape: tuple[int, int], scale: float, draw: torch.Generator) -> Tensor:
        """Columns beside a core's: random sign and mantissa, exponents in BESIDE."""
        low, high = BESIDE
        size = torch.rand(shape, generator=draw, device=self.device).mul_(high - low).add_(low).exp2_().mul_(scale)
        sign = torch.randint(0, 2, shape, generator=draw, device=self.device, dtype=torch.int8).mul_(2).sub_(1)
        return size.mul_(sign).bfloat16()


def fill(filler: Filler, name: str, shape: torch.Size, rule: Rule, core: Tensor | None, like: Tensor) -> Tensor:
    """One tensor of the full model.

    Args:
        core: the core's tensor where this layer is one of its own; None in an inert layer.
        like: the core's tensor that gives the usual size.
    """
    draw, scale = filler.generator(name), float(like.float().std()) or 1.0
    out = filler.normal(shape, scale, draw)
    rows = rule.rows.places.to(filler.device)
    quiet = torch.full((shape[0],), isinstance(rule.inert, str) and rule.inert == "tiny", device=filler.device)
    if isinstance(rule.inert, Tensor):
        quiet = rule.inert.to(filler.device).clone()
    if core is not None:
        quiet[rows.flatten()] = False
    out[quiet] = out[quiet] * TINY
    if core is None:
        return out
    value = core.to(filler.device, torch.float32) * rule.rows.factor
    if rule.columns is None:
        for copy in rows:
            out[copy] = value.to(out.dtype)
        return out
    columns = rule.columns.places.to(filler.device)
    value = (value * rule.columns.factor).to(out.dtype)
    for copy in rows:
        beside = filler.beside((len(copy), shape[1]), scale * abs(rule.rows.factor * rule.columns.factor), draw)
        if rule.quiet_columns:
            beside = beside * TINY
        for places in columns:
            beside[:, places] = value
        out[copy] = beside
    return out


def stream_norm(placement: Placement, core: Tensor) -> Tensor:
    """A norm's weight over the wide stream: the core's divided by the gain, in every copy; one elsewhere."""
    full, size = placement.both("hidden_size")
    plain = core.float() + 1.0 if placement.offset_norms else core.float()
    out = torch.ones(full)
    for copy in range(placement.copies):
        out[copy * size : (copy + 1) * size] = plain / placement.gain
    return (out - 1.0 if placement.offset_norms else out).bfloat16()


def base_kernel(placement: Placement, core: Tensor) -> Tensor:
    """A convolution's base kernel [2, taps, hidden]: the core's in every copy; the identity elsewhere."""
    full, size = placement.both("hidden_size")
    out = torch.zeros(*core.shape[:2], full)
    out[:, 0] = 1.0
    for copy in range(placement.copies):
        out[..., copy * size : (copy + 1) * size] = core.float()
    return out.bfloat16()


def tensors_of(
    core: dict[str, Tensor], placement: Placement, layers: list[int], filler: Filler
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor of the full model, in BF16 on the filler's device, one after another."""
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in build(placement.full).state_dict().items()}
    if "lm_head.weight" in shapes and "lm_head.weight" not in core:
        core = {**core, "lm_head.weight": core["model.embed_tokens.weight"]}
    where = {full: index for index, full in enumerate(layers)}
    for name, shape in shapes.items():
        own, like = _core_name(name, where, core)
        if HEAD_NORMS.search(name):
            made = core[like].bfloat16().clone()
        elif STREAM_NORMS.search(name):
            made = stream_norm(placement, core[like])
        elif name.endswith("base_kernel"):
            made = base_kernel(placement, core[like])
        else:
            made = fill(filler, name, shape, placement.rule(name), core[own] if own else None, core[like])
        if made.shape != shape:
            raise ValueError(f"{name}: made {tuple(made.shape)} for {tuple(shape)}")
        yield name, made


def _core_name(name: str, where: dict[int, int], core: dict[str, Tensor]) -> tuple[str | None, str]:
    """The core's tensor for a full name (None in an inert layer), and one that shows the usual size."""
    found = re.search(r"layers\.(\d+)\.", name)
    if not found:
        return name, name
    index = int(found.group(1))
    if index in where:
        own = name.replace(found.group(0), f"layers.{where[index]}.", 1)
        return own, own
    tail = name.split(found.group(0), 1)[1]
    return None, next(other for other in core if other.endswith((f".{tail}", f"layers.0.{tail}")))


def full_config(core: dict[str, Any], full: dict[str, Any], target_layers: list[int], depth: int) -> dict[str, Any]:
    """The stand-in's config.json: the core's with the full sizes; a drafter's feature layers move with the target's.

    Args:
        target_layers: full index of each of the target's core layers. depth: layers of the full target.
    """
    made = {**core, **{k: v for k, v in full.items() if k not in ("selector_rank",)}}
    if "dflash_config" in core:
        nested = dict(core["dflash_config"])
        nested["target_layer_ids"] = [target_layers[i] for i in nested["target_layer_ids"]]
        nested |= {k: full[k] for k in ("selector_rank",) if k in full}
        made |= {"dflash_config": nested, "num_target_layers": depth}
        if "target_layer_ids" in core:
            made["target_layer_ids"] = nested["target_layer_ids"]
    if "eagle_config" in core:
        ids = [target_layers[i] for i in core["eagle_config"]["eagle_aux_hidden_state_layer_ids"]]
        made["eagle_config"] = {**core["eagle_config"], "eagle_aux_hidden_state_layer_ids": ids}
    if "layer_types" in core:
        every = core["full_attention_interval"]
        kinds = core["layer_types"][:every]
        made["layer_types"] = [kinds[i % every] for i in range(made["num_hidden_layers"])]
    return made


def write_standin(
    core_folder: Path,
    full: dict[str, Any],
    out: Path,
    *,
    seed: int = 0,
    device: str = "cpu",
    target_layers: list[int] | None = None,
    depth: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> list[int]:
    """Write a stand-in of the core in `core_folder` to `out`; full index of each core layer.

    Args:
        full: the full sizes, by config key. target_layers, depth: of the target's stand-in, for a drafter.
    Raises:
        ValueError: the sizes do not allow an exact placement. InputUnusable: the core cannot be read.
    """
    core = json.loads((core_folder / "config.json").read_bytes())
    config = full_config(core, {**full, "tie_word_embeddings": False}, target_layers or [], depth)
    layers = placed_layers(
        core["num_hidden_layers"], config["num_hidden_layers"], core.get("full_attention_interval", 1)
    )
    placement, out = Placement(core, config), out
    out.mkdir(parents=True, exist_ok=True)
    files = _write_shards(tensors_of(read_tensors(core_folder), placement, layers, Filler(seed, device)), out, say)
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    manifest = {
        "core_sha256": sha256_file(core_folder / "model.safetensors"), "seed": seed, "layers": layers,
        "copies": placement.copies, "gain": placement.gain, "files": files,
    }  # fmt: skip
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    return layers


def _write_shards(tensors: Iterator[tuple[str, Tensor]], out: Path, say: Callable[[str], None]) -> dict[str, int]:
    """Shards of about SHARD_BYTES with an index; bytes of each.

    The next shards are made while up to WRITERS are copied and written: a single thread writes 0.4 to 0.6 GB/s to
    memory that the machine touches for the first time, which is what a build waits for.
    """
    where: dict[str, str] = {}
    pending: list[Future[int]] = []

    def ready(count: int) -> None:  # bounds the memory that is held
        for future in pending[: len(pending) - count]:
            future.result()

    with ThreadPoolExecutor(WRITERS) as pool:
        for held in _shards(tensors):
            name = f"model-{len(pending) + 1:05d}.safetensors"
            where.update(dict.fromkeys(held, name))
            pending.append(pool.submit(_write_shard, held, out / name))
            ready(WRITERS)
        sizes = {f"model-{at + 1:05d}.safetensors": future.result() for at, future in enumerate(pending)}
    for name, size in sizes.items():
        say(f"{name}: {size / 1e9:.2f} GB")
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return sizes


def _shards(tensors: Iterator[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    held: dict[str, Tensor] = {}
    for name, tensor in tensors:
        held[name] = tensor
        if sum(t.nbytes for t in held.values()) >= SHARD_BYTES:
            yield held
            held = {}
    if held:
        yield held


def _write_shard(tensors: dict[str, Tensor], path: Path) -> int:
    from safetensors.torch import save_file

    with _own_stream(tensors):
        copied = {name: t.to("cpu").contiguous() for name, t in tensors.items()}
    save_file(copied, path, metadata={"format": "pt"})
    return path.stat().st_size


def _own_stream(tensors: dict[str, Tensor]) -> AbstractContextManager[object]:
    """On a GPU a stream for this thread's copies: on the common one they would wait for each other's page faults."""
    device = next(iter(tensors.values())).device
    if device.type != "cuda":
        return nullcontext()
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.default_stream(device))  # the tensors were made there
    return torch.cuda.stream(stream)
