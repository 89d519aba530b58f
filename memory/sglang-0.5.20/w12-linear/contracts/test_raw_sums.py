"""What a pack left as it was (`specpilot w12 pack`) is compared with the check sums in its file's header."""

import importlib
import json
import zlib
from pathlib import Path

import pytest
import torch

compared = importlib.import_module("sglang.srt.layers.quantization.w12.raw_sums").compared
W12LoadError = importlib.import_module("sglang.srt.layers.quantization.w12.errors").W12LoadError


def pack_file(path: Path, raw: dict[str, torch.Tensor], *, named: tuple[str, ...] = ("q",)) -> None:
    """A file with a pack's header: sums of `raw`, packed matrices `named`. Its tensors do not matter here."""
    sums = {}
    for name, tensor in raw.items():
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        pieces = [zlib.crc32(data[at : at + 2**22]) for at in range(0, len(data), 2**22)]
        sums[name] = f"{zlib.crc32(b''.join(value.to_bytes(4, 'little') for value in pieces)):08x}"
    about = {"version": 1, "tensors": {name: [300, 128] for name in named}, "raw": sums}
    metadata = {"specpilot.w12": json.dumps(about), "specpilot.w12.header": "0" * 8}
    header = json.dumps({"__metadata__": metadata}, separators=(",", ":")).encode()
    field = b'"specpilot.w12.header":"%s"'
    header = header.replace(field % (b"0" * 8), field % f"{zlib.crc32(header):08x}".encode())
    path.write_bytes(len(header).to_bytes(8, "little") + header)


@pytest.fixture
def left(tmp_path: Path) -> tuple[str, dict[str, torch.Tensor]]:
    """A pack's file and what it left as it was; one tensor has more than one piece, one no dimension."""
    generator = torch.Generator().manual_seed(0)
    raw = {
        "norm": torch.ones(64, dtype=torch.bfloat16),
        "embed": torch.randn(1100, 2048, generator=generator, dtype=torch.float32),
    }
    raw |= {"head": raw["embed"][:9].bfloat16(), "scale": torch.tensor(3.0)}
    pack_file(tmp_path / "model.safetensors", raw)
    return str(tmp_path / "model.safetensors"), raw


def test_what_a_pack_left_is_compared_with_its_sums(left: tuple[str, dict[str, torch.Tensor]]) -> None:
    file, raw = left
    asked = [("q.w12.records", torch.zeros(1)), *raw.items()]
    assert [name for name, _ in compared(asked, [file])] == [name for name, _ in asked]
    for name, tensor in raw.items():
        damaged = tensor.clone()
        damaged.reshape(-1).view(torch.uint8)[-1] ^= 1
        with pytest.raises(W12LoadError, match=rf"w12: {name}: its bytes do not give its check sum"):
            list(compared((raw | {name: damaged}).items(), [file]))
        with pytest.raises(W12LoadError, match=rf"w12: {name}: it is missing"):
            list(compared([item for item in raw.items() if item[0] != name], [file]))
    with pytest.raises(W12LoadError, match="w12: other: it has no check sum"):
        list(compared([("other", raw["norm"])], [file]))


def test_a_changed_header_of_a_pack_is_refused(left: tuple[str, dict[str, torch.Tensor]]) -> None:
    file, raw = left
    data = Path(file).read_bytes()
    for at in range(8, len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        Path(file).write_bytes(changed)
        with pytest.raises(W12LoadError, match="header"):
            list(compared(raw.items(), [file]))


def test_a_file_that_is_no_pack_passes(tmp_path: Path) -> None:
    (tmp_path / "a.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    assert [name for name, _ in compared([("x", torch.zeros(1))], [str(tmp_path / "a.safetensors")])] == ["x"]
