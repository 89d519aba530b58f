"""Packing, verifying, loading: bit for bit, resumable, and every damage named."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.w12 import SKIP, audit
from specpilot_cli.w12.load import PackFault, decoded, decoded_parts, matrices
from specpilot_cli.w12.pack import INDEX, index_of, pack
from specpilot_cli.w12.shards import open_checkpoint, open_shard
from specpilot_cli.w12.stream import Choice
from specpilot_cli.w12.sums import blank, stamped
from specpilot_cli.w12.verify import verify

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
UP = "model.layers.0.mlp.up_proj.weight"


def quiet(_: str) -> None:
    """Progress that nobody reads."""


@pytest.fixture
def packed(checkpoint: Path, tmp_path: Path) -> Path:
    pack(open_checkpoint(checkpoint), Choice(SKIP), tmp_path / "packed", quiet)
    return tmp_path / "packed"


def test_the_pack_is_right_with_and_without_its_source(checkpoint: Path, packed: Path) -> None:
    whole = verify(open_checkpoint(packed), open_checkpoint(checkpoint), quiet)
    assert (whole.packed, whole.raw, whole.difference) == (2, 4, None)
    alone = verify(open_checkpoint(packed), None, quiet)
    raw = sum(e.size for shard in open_checkpoint(checkpoint) for e in shard.entries.values() if e.dtype != "BF16")
    raw += 2 * (256 * 96 + 96)
    compared = 2 * (300 * 200 + 3 * 128 * 64) + raw
    assert (alone.packed, alone.raw, alone.bytes_compared, alone.difference) == (2, 4, compared, None)


def test_the_safetensors_package_reads_the_pack(checkpoint: Path, packed: Path) -> None:
    tensors = load_file(packed / ONE)
    source = load_file(checkpoint / ONE)
    assert torch.equal(tensors["model.layers.0.bias"], source["model.layers.0.bias"])
    assert tensors[f"{UP}.w12.records"].shape == (3, 4, 12288)
    with safe_open(packed / ONE, "pt") as file:
        assert json.loads(file.metadata()["specpilot.w12"])["tensors"] == {UP: [300, 200]}
        assert file.metadata()["format"] == "pt"
    index = json.loads((packed / "model.safetensors.index.json").read_bytes())
    assert index["weight_map"][f"{UP}.w12.check"] == ONE


def test_loading_gives_the_weights_and_their_parts(checkpoint: Path, packed: Path) -> None:
    source = load_file(checkpoint / ONE)[UP]
    matrix = matrices(open_shard(packed / ONE))[UP]
    rows = torch.cat([weight for _, weight in decoded(matrix)])
    assert torch.equal(rows.view(torch.int16), source.view(torch.int16))
    assert [p.shape for _, _, p in decoded_parts(matrix)] == [(300, 200)]


def test_pieces_of_one_tile_give_the_same_file(checkpoint: Path, packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specpilot_cli.w12.stream.PIECE_BYTES", 1)
    monkeypatch.setattr("specpilot_cli.w12.stream.JOB_BYTES", 1)
    pack(open_checkpoint(checkpoint), Choice(SKIP), packed.with_name("small"), quiet)
    for name in (ONE, TWO):
        assert (packed.with_name("small") / name).read_bytes() == (packed / name).read_bytes()
    assert verify(open_checkpoint(packed), open_checkpoint(checkpoint), quiet).difference is None
    assert len(list(decoded(matrices(open_shard(packed / ONE))[UP]))) == 3


def test_a_killed_run_goes_on_with_the_next_file(checkpoint: Path, packed: Path) -> None:
    stamp = (packed / ONE).stat().st_mtime_ns
    (packed / TWO).unlink()
    (packed / f".{TWO}.partial").write_bytes(b"half")
    said: list[str] = []
    pack(open_checkpoint(checkpoint), Choice(SKIP), packed, said.append)
    assert (packed / ONE).stat().st_mtime_ns == stamp
    assert "kept" in said[0] and "kept" not in said[1]
    assert not list(packed.glob(".*"))
    assert verify(open_checkpoint(packed), open_checkpoint(checkpoint), quiet).difference is None


def test_another_source_is_packed_anew(checkpoint: Path, packed: Path) -> None:
    tensors = load_file(checkpoint / TWO)
    tensors["more"] = torch.zeros(1)
    save_file(tensors, checkpoint / TWO)
    said: list[str] = []
    pack(open_checkpoint(checkpoint), Choice(SKIP), packed, said.append)
    assert "kept" in said[0] and "kept" not in said[1]


def test_the_source_is_never_overwritten(checkpoint: Path, packed: Path) -> None:
    with pytest.raises(UsageFault):
        pack(open_checkpoint(checkpoint), Choice(SKIP), checkpoint, quiet)
    with pytest.raises(InputUnusable, match="pack already"):
        pack(open_checkpoint(packed), Choice(SKIP), packed.with_name("again"), quiet)


def rewritten(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    """A file of these tensors with a right header sum: what is wrong with it has to be found elsewhere."""
    save_file(tensors, path, metadata=metadata | blank())
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes(data[:8] + stamped(data[8:end]) + data[end:])


def change(packed: Path, part: str, damage: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """Rewrites the first file with one part of the matrix changed, or left out; the index goes with it."""
    with safe_open(packed / ONE, "pt") as file:
        metadata = file.metadata()
    tensors = load_file(packed / ONE)
    changed = damage(tensors.pop(f"{UP}.w12.{part}"))
    if changed is not None:
        tensors[f"{UP}.w12.{part}"] = changed
    rewritten(packed / ONE, tensors, metadata)
    (packed / INDEX).write_text(json.dumps(index_of(open_checkpoint(packed))))


def flip(index: int, bit: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def damage(part: torch.Tensor) -> torch.Tensor:
        flat = part.clone().view(-1)
        flat[index] ^= bit
        return flat.view(part.shape)

    return damage


# thread 0 of half 0: channel 0 (low nibble) of the first record of tile 1, which is channel 128
TILE_1 = 4 * 12288
DAMAGES = [
    ("records", flip(TILE_1 + 8192, 1), 128, "check sum"),
    ("records", lambda t: t[:, :-1].contiguous(), None, "not of the shape"),
    ("records", lambda t: None, None, "records is missing"),
    ("escape_column", lambda t: None, None, "escape_column is missing"),
    ("escape_bits", lambda t: t[:-1].contiguous(), None, "differ in length"),
    ("escape_bits", flip(0, 1), 7, "check sum"),
    ("escape_column", flip(0, 2**20), 7, "outside K"),
    ("escape_column", flip(1, 1), 7, "ascending"),
    ("window_low", flip(5, 1), 5, "check sum"),
    ("window_low", lambda t: torch.zeros_like(t), 0, "normal exponents"),
    ("escape_start", lambda t: torch.zeros_like(t), None, "truncated|check sum|not exist"),
    ("escape_start", flip(8, 2**30), 7, "ascending"),
    ("check", flip(200, 4), 200, "check sum"),
]


@pytest.mark.parametrize(("part", "damage", "channel", "message"), DAMAGES)
def test_damage_is_named(
    checkpoint: Path, packed: Path, part: str, damage: Callable[..., torch.Tensor], channel: int | None, message: str
) -> None:
    change(packed, part, damage)
    for source in (None, open_checkpoint(checkpoint)):
        found = verify(open_checkpoint(packed), source, quiet).difference
        assert found is not None and found.tensor == UP
        assert channel is None or found.channel is None or found.channel >= channel - 1
        assert any(word in found.what for word in message.split("|")), found.what
    with pytest.raises(PackFault, match="up_proj"):
        list(decoded(matrices(open_shard(packed / ONE))[UP]))


def test_a_wrong_source_is_told_from_a_right_one(checkpoint: Path, packed: Path) -> None:
    tensors = load_file(checkpoint / ONE)
    tensors[UP][130, 3] += 1
    save_file(tensors, checkpoint / ONE)
    found = verify(open_checkpoint(packed), open_checkpoint(checkpoint), quiet).difference
    assert found is not None and (found.tensor, found.channel) == (UP, 130)


@pytest.mark.parametrize("name", [ONE, TWO])
def test_truncated_and_missing_files_are_refused(checkpoint: Path, packed: Path, name: str) -> None:
    data = (packed / name).read_bytes()
    (packed / name).write_bytes(data[:-100])
    with pytest.raises(InputUnusable, match="ends inside"):
        open_checkpoint(packed)
    (packed / name).unlink()
    with pytest.raises(InputUnusable, match=r"no counterpart|no W12 pack|index"):
        verify(open_checkpoint(packed), open_checkpoint(checkpoint), quiet)


def test_the_audit_counts_what_the_pack_holds(checkpoint: Path, packed: Path) -> None:
    found = {t.name: t for t in audit.audits(open_checkpoint(checkpoint), Choice(SKIP))}
    assert set(found) == {UP, "model.layers.1.experts.weight"}
    shard = open_shard(packed / ONE)
    stored = sum(e.size for n, e in shard.entries.items() if n.startswith(UP))
    assert found[UP].bytes_packed == stored - 4  # the closing entry of escape_start, once a piece
    assert found[UP].worst_channels[0].channel == 7 and found[UP].worst_channels[0].escapes >= 4
    # eight exponent bits hold 16 equally likely values in 4 bits: 8 + 4
    even = torch.tensor([2.0**-e for e in range(16)]).repeat(128, 4).bfloat16()
    save_file({"w": even}, checkpoint / "even.safetensors")
    (tensor,) = audit.audits([open_shard(checkpoint / "even.safetensors")], Choice(""))
    assert math.isclose(tensor.entropy_bits, 12.0) and tensor.escape_rate == 0
    assert math.isclose(tensor.per_tensor_bits, 12 + 16 / 16)


def test_cache_tokens_count_the_layers_that_keep_a_cache(checkpoint: Path) -> None:
    assert audit.kv_bytes_per_token(checkpoint) == 2 * 2 * 2 * 64 * 2
    shards = open_checkpoint(checkpoint)
    sums = audit.totals(shards, tuple(audit.audits(shards, Choice(SKIP))))
    kv = audit.kv_cache(sums, 1024, 10**6, 0.5)
    assert kv is not None
    assert kv.tokens_source == (500_000 - sums.bytes_checkpoint) // 1024
    assert kv.tokens_packed == (500_000 - sums.bytes_checkpoint_packed) // 1024
