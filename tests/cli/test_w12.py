"""`specpilot w12` as a user runs it: exit codes, what stdout holds, and memory that does not grow with the file."""

from __future__ import annotations

import json
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


@pytest.mark.slow
def test_memory_stays_below_2_gb_for_a_file_of_3_gb(tmp_path: Path) -> None:
    # one tensor of 3 GB written by range, so that the test itself stays small
    rows, columns, piece = 300 * 1024, 5120, 4096
    folder = tmp_path / "source"
    folder.mkdir()
    header = {"w": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, 2 * rows * columns]}}
    text = json.dumps(header).encode()
    weight = (torch.randn(piece, columns) * 0.02).bfloat16().view(torch.int16).numpy().tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _ in range(rows // piece):
            file.write(weight)
    for arguments in (["audit", folder], ["pack", folder, "-o", tmp_path / "out"], ["verify", tmp_path / "out"]):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, "w12", *map(str, arguments)], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-1]) < 2e9
