"""Safetensors headers: what is read, and which damage is refused with which words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.w12.shards import open_checkpoint, open_shard


def write(path: Path, header: object, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def test_a_file_of_the_safetensors_package_is_read(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    tensors = {"a": torch.randn(3, 5).bfloat16(), "b": torch.arange(7)}
    save_file(tensors, tmp_path / "x.safetensors", metadata={"format": "pt"})
    shard = open_shard(tmp_path / "x.safetensors")
    assert {n: (e.dtype, e.shape) for n, e in shard.entries.items()} == {"a": ("BF16", (3, 5)), "b": ("I64", (7,))}
    assert shard.metadata == {"format": "pt"}
    with open(shard.path, "rb") as file:
        assert b"".join(shard.pieces(shard.entries["b"], file)) == tensors["b"].numpy().tobytes()


@pytest.mark.parametrize(
    ("header", "data", "message"),
    [
        ({"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]}}, b"1234", "ends inside a"),
        ({"a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 6]}}, b"123456", "not the bytes of its shape"),
        ({"a": {"dtype": "X", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "unknown type"),
        ({"a": {"dtype": "U8", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "no sizes"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0]}}, b"1234", "no sizes"),
        ({"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}, b"12345", "belong to no tensor"),
        ({"a": 3}, b"", "no object"),
        ([1], b"", "no object"),
        (b"{", b"", "not a safetensors file"),
        ({"__metadata__": {"a": 1}}, b"", "no strings"),
    ],
)
def test_damaged_headers_are_refused(tmp_path: Path, header: object, data: bytes, message: str) -> None:
    with pytest.raises(InputUnusable) as caught:
        open_shard(write(tmp_path / "x.safetensors", header, data))
    assert message in str(caught.value)


def test_too_short_and_missing_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 9)
    for path in (tmp_path / "x.safetensors", tmp_path / "none.safetensors", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(InputUnusable):
            open_checkpoint(path)
