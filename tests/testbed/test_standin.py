"""A core inside a larger model: the same text, the same drafts, honest weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from testbed import tiny  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from specpilot_cli.testbed.nn import standin  # noqa: E402
from specpilot_cli.testbed.nn.acceptance import block_runs, eagle_runs  # noqa: E402
from specpilot_cli.testbed.nn.block_drafter import BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.files import load, read_tensors, save  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridModel, OffsetNorm  # noqa: E402
from specpilot_cli.testbed.nn.placement import Placement, placed_layers, widening  # noqa: E402
from specpilot_cli.testbed.nn.standin import TINY, write_standin  # noqa: E402

FULL_DENSE: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 130, "num_hidden_layers": 9, "num_attention_heads": 10,
    "num_key_value_heads": 5, "vocab_size": 150,
}  # fmt: skip
FULL_HYBRID: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 130, "num_hidden_layers": 16, "num_attention_heads": 8,
    "num_key_value_heads": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 12, "vocab_size": 150,
}  # fmt: skip
FULL_BLOCK: dict[str, Any] = {
    "hidden_size": 256, "intermediate_size": 140, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 4, "vocab_size": 150, "markov_rank": 6, "selector_rank": 6,
}  # fmt: skip
FULL_EAGLE: dict[str, Any] = {k: v for k, v in FULL_BLOCK.items() if "rank" not in k} | {"num_hidden_layers": 1}


def shipped(model: DenseModel | HybridModel, folder: Path) -> DenseModel | HybridModel:
    """As a trained core is shipped: BF16, offset norms on the grid that halves exactly; confident about its tokens."""
    with torch.no_grad():
        model.lm_head.weight.mul_(3.0) if isinstance(model, HybridModel) else None
        for module in model.modules():
            if isinstance(module, OffsetNorm):
                module.weight.copy_((module.weight * 128).round() / 128)
    config = (
        model.config.to_json()
        if isinstance(model, HybridModel)
        else {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **vars(model.config)}
    )
    save(model, config, folder, {})
    back = load(folder)
    assert isinstance(back, DenseModel | HybridModel)
    return back


def pair(kind: str, folder: Path) -> tuple[DenseModel | HybridModel, DenseModel | HybridModel, list[int]]:
    """A core, its stand-in, and where its layers are."""
    core = shipped(tiny.dense() if kind == "dense" else tiny.hybrid(), folder / "core")
    layers = write_standin(folder / "core", FULL_DENSE if kind == "dense" else FULL_HYBRID, folder / "full")
    full = load(folder / "full")
    assert isinstance(full, DenseModel | HybridModel)
    return core, full, layers


def logits(model: DenseModel | HybridModel, ids: Tensor) -> Tensor:
    hidden, _ = model(ids)
    return F.linear(hidden, model.head)


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_the_stand_in_computes_what_the_core_computes(kind: str, tmp_path: Path) -> None:
    core, full, _ = pair(kind, tmp_path)
    ids = torch.randint(0, tiny.VOCAB, (3, 60), generator=torch.Generator().manual_seed(1))
    small, large = logits(core, ids), logits(full, ids)
    # The same float32 products summed in another order: 16 layers of sums of up to 256 terms. What is not the core's
    # adds 2^-40 of a usual value.
    assert tiny.close(large[..., : tiny.VOCAB], small, 2e-5)
    assert float(large[..., tiny.VOCAB :].abs().max()) < 1e-6


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_greedy_text_is_the_cores(kind: str, tmp_path: Path) -> None:
    """At float32; where the two texts part, the core's own two best tokens are closer than the logits' difference."""
    core, full, _ = pair(kind, tmp_path)
    small, large = tiny.texts(core, count=8, new=60), tiny.texts(full, count=8, new=60)
    for one, other in zip(small.ids.tolist(), large.ids.tolist(), strict=True):
        if one == other:
            continue
        at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
        best = logits(core, torch.tensor([one[:at]]))[0, -1].topk(2).values
        assert float(best[0] - best[1]) < 1e-4
    same = sum(a == b for a, b in zip(small.ids.tolist(), large.ids.tolist(), strict=True))
    assert same >= 7


@pytest.mark.parametrize("kind", ["DFLASH2", "DSPARK", "EAGLE3"])
def test_a_drafters_stand_in_drafts_what_the_drafter_drafts(kind: str, tmp_path: Path) -> None:
    core, full, layers = pair("dense", tmp_path)
    made = tiny.eagle() if kind == "EAGLE3" else tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
    save(made, made.config.to_json(), tmp_path / "drafter", {})
    sizes = FULL_EAGLE if kind == "EAGLE3" else FULL_BLOCK
    if kind == "DFLASH2":
        sizes = {k: v for k, v in sizes.items() if k != "markov_rank"}
    elif kind == "DSPARK":
        sizes = {k: v for k, v in sizes.items() if k != "selector_rank"} | {"markov_rank": 4}
    write_standin(
        tmp_path / "drafter", sizes, tmp_path / "wide", target_layers=layers, depth=FULL_DENSE["num_hidden_layers"]
    )
    drafter, wide = load(tmp_path / "drafter"), load(tmp_path / "wide")
    assert [layers[i] for i in drafter.config.target_layer_ids] == list(wide.config.target_layer_ids)
    texts = tiny.texts(core, count=4, new=40)
    if kind == "EAGLE3":
        assert isinstance(drafter, EagleHead) and isinstance(wide, EagleHead)
        small, large = eagle_runs(drafter, core, texts, 3), eagle_runs(wide, full, texts, 3)
    else:
        assert isinstance(drafter, BlockDrafter) and isinstance(wide, BlockDrafter)
        small, large = block_runs(drafter, core, texts, 6), block_runs(wide, full, texts, 6)
        anchors, starts = texts.ids[:, 10:11], torch.full((4, 1), 10)
        rows = [
            d(t.embedding, anchors, starts, 6, d.context(t(texts.ids, d.config.target_layer_ids)[1]))[
                ..., : tiny.HIDDEN
            ]
            for d, t in ((drafter, core), (wide, full))
        ]
        assert tiny.close(rows[1], rows[0], 2e-5)
    assert float((small != large).float().mean()) < 0.01  # near-ties


def test_inert_weights_are_tiny_row_by_row_and_the_rest_keeps_its_window(tmp_path: Path) -> None:
    """W12 keeps 4 bits of the exponent, 15 binades below a row's largest: few values of any row may lie below."""
    pair("hybrid", tmp_path)
    outside = total = 0
    for name, tensor in read_tensors(tmp_path / "full").items():
        if tensor.dim() != 2 or "embed_tokens" in name:
            continue
        exponents = torch.frexp(tensor.float()).exponent
        low = exponents.max(-1, keepdim=True).values - 14
        outside += int(((exponents < low) | (tensor == 0)).sum())
        total += tensor.numel()
    assert outside / total < 2e-3


def test_inert_layers_write_nothing_and_are_where_the_manifest_does_not_say(tmp_path: Path) -> None:
    _, _, layers = pair("hybrid", tmp_path)
    manifest = json.loads((tmp_path / "full" / "manifest.json").read_text())
    assert manifest["layers"] == layers == [0, 1, 2, 3, 8, 9, 10, 11]
    assert (manifest["copies"], manifest["gain"]) == (2, 2.0)
    full = read_tensors(tmp_path / "full")
    for index in range(16):
        weight = full[f"model.layers.{index}.mlp.down_proj.weight"].float().abs().max()
        assert (weight < 64 * TINY) == (index not in layers)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    shipped(tiny.dense(), tmp_path / "core")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_standin(tmp_path / "core", FULL_DENSE, tmp_path / name, seed=seed)
    one, two, three = ((tmp_path / n / "model-00001.safetensors").read_bytes() for n in "abc")
    assert one == two != three


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hidden_size": 96}, "exact"),
        ({"num_key_value_heads": 2}, "num_attention_heads"),
        ({"num_hidden_layers": 4}, "fit"),
    ],
)
def test_sizes_without_an_exact_placement_are_refused(change: dict[str, int], what: str, tmp_path: Path) -> None:
    shipped(tiny.dense(), tmp_path / "core")
    with pytest.raises(ValueError, match=what):
        write_standin(tmp_path / "core", FULL_DENSE | change, tmp_path / "full")


def test_places() -> None:
    assert widening(640, 5120) == (2, 2.0) and widening(576, 4608) == (2, 2.0)
    assert widening(10, 40) == (1, 2.0) and widening(8, 8) == (1, 1.0)
    assert placed_layers(8, 64, 4) == [0, 1, 2, 3, 32, 33, 34, 35]
    assert len(set(placed_layers(30, 32))) == 30
    core, full = tiny.dense(), FULL_DENSE
    config = {"architectures": ["LlamaForCausalLM"], **vars(core.config)}
    with pytest.raises(ValueError, match="no rule"):
        Placement(config, config | full).rule("model.layers.0.mystery.weight")


def test_shards_written_at_once_hold_every_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair("hybrid", tmp_path / "one")
    monkeypatch.setattr(standin, "SHARD_BYTES", 20_000)
    monkeypatch.setattr(standin, "WRITERS", 3)
    pair("hybrid", tmp_path / "many")
    one, many = (read_tensors(tmp_path / name / "full") for name in ("one", "many"))
    assert len(list((tmp_path / "many" / "full").glob("*.safetensors"))) > 8
    assert one.keys() == many.keys() and all(torch.equal(one[name], many[name]) for name in one)
    index = json.loads((tmp_path / "many" / "full" / "model.safetensors.index.json").read_text())
    manifest = json.loads((tmp_path / "many" / "full" / "manifest.json").read_text())
    assert index["weight_map"].keys() == many.keys()
    assert set(index["weight_map"].values()) == manifest["files"].keys()
