"""`specpilot w12` as a user runs it: exit codes, what stdout holds, and memory that does not grow with the file."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cli import Cli

torch = pytest.importorskip("torch")

PEAK = """
import resource, sys
from specpilot_cli.__main__ import main
sys.argv = ["specpilot", *sys.argv[1:]]
try:
    code = main()
except SystemExit as stop:
    code = stop.code
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
raise SystemExit(code)
"""


def make(folder: Path, rows: int, columns: int) -> Path:
    from safetensors.torch import save_file

    folder.mkdir()
    weight = (torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)) * 0.02).bfloat16()
    save_file({"model.layers.0.weight": weight}, folder / "model.safetensors")
    return folder


def test_audit_pack_verify(cli: Cli, tmp_path: Path) -> None:
    source = make(tmp_path / "source", 256, 320)
    audit = json.loads(cli("w12", "audit", source, "-o", "-").expect(0).out)
    assert audit["schema"] == "specpilot.w12-audit/1" and audit["complete"]
    assert audit["body"]["totals"]["tensors"] == 1
    done = cli("w12", "pack", source, "-o", tmp_path / "packed").expect(0)
    assert done.out == f"{tmp_path / 'packed' / 'model.safetensors'}\n"
    verified = cli("w12", "verify", tmp_path / "packed", "--source", source, "-o", "-").expect(0)
    assert json.loads(verified.out)["body"]["difference"] is None
    cli("w12", "verify", tmp_path / "packed", "-o", "-").expect(0)


def test_a_flipped_bit_is_a_negative_verdict_and_garbage_an_unusable_input(cli: Cli, tmp_path: Path) -> None:
    source = make(tmp_path / "source", 256, 320)
    cli("w12", "pack", source, "-o", tmp_path / "packed").expect(0)
    path = tmp_path / "packed" / "model.safetensors"
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start + 5 * 12288 + 8192] ^= 1  # the first record of the second tile, plane B
    path.write_bytes(data)
    result = cli("w12", "verify", tmp_path / "packed", "-o", "-").expect(1)
    difference = json.loads(result.out)["body"]["difference"]
    assert difference["tensor"] == "model.layers.0.weight" and difference["channel"] >= 128
    assert f"channel {difference['channel']}" in result.err
    cli("w12", "verify", source, "-o", "-").expect(3)
    path.write_bytes(data[:-1])
    cli("w12", "verify", tmp_path / "packed", "-o", "-").expect(3)
    cli("w12", "audit", tmp_path / "none").expect(3)
    cli("w12", "audit", source, "--skip", "(").expect(2)


def write(path: Path, shapes: dict[str, tuple[int, int]], fresh: bool) -> Path:
    """A file of Gaussian weights by ranges, so that the test itself stays small; `fresh`: no block occurs twice."""
    header, at = {}, 0
    for name, (rows, columns) in shapes.items():
        header[name] = {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [at, at + 2 * rows * columns]}
        at += 2 * rows * columns
    text = json.dumps(header).encode()
    path.parent.mkdir()
    generator, block = torch.Generator().manual_seed(0), 2**24
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, at // 2, block):
            if fresh or not start:
                weight = (torch.randn(block, generator=generator) * 0.02).bfloat16().view(torch.int16).numpy()
            file.write(weight[: at // 2 - start].data)
    return path.parent


@pytest.mark.slow
def test_memory_stays_below_2_gb_for_a_tensor_of_6_gb(tmp_path: Path) -> None:
    folder = write(tmp_path / "source" / "model.safetensors", {"w": (600 * 1024, 5120)}, fresh=False)
    for arguments in (["audit", folder], ["pack", folder, "-o", tmp_path / "out"], ["verify", tmp_path / "out"]):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, "w12", *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        peak = int(done.stdout.split()[-1])
        print(arguments[0], f"{peak / 1e9:.2f} GB")
        assert peak < 2e9
    shutil.rmtree(folder), shutil.rmtree(tmp_path / "out")  # 11 GB that nobody needs to keep


QWEN_27B = {
    "gate_up": (34816, 5120),
    "down": (5120, 17408),
    "qkv": (14336, 5120),
    "o": (5120, 6144),
    "gdn_in": (16384, 5120),
}


@pytest.mark.slow
def test_gaussian_weights_of_a_27b_model_take_12_01_to_12_03_bits(cli: Cli, tmp_path: Path) -> None:
    folder = write(tmp_path / "source" / "model.safetensors", QWEN_27B, fresh=True)
    body = json.loads(cli("w12", "audit", folder, "-o", "-").expect(0).out)["body"]
    shutil.rmtree(folder)
    bits = {tensor["name"]: tensor["bits_per_weight"] for tensor in body["tensors"]}
    print(bits, body["totals"]["bits_per_weight"])
    assert 12.01 <= body["totals"]["bits_per_weight"] <= 12.03
    # 72 bits a channel over 17,408 columns are 0.004: that shape alone lies below 12.01
    assert all(12.005 < b <= 12.03 for b in bits.values()) and set(bits) == set(QWEN_27B)
