"""`specpilot lint` on folders: exit codes, one line a finding, and what was not looked at."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from lint.checkpoints import DFLASH, TARGET, headers, write
from support.cli import Cli

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.lint import Tensor, read_checkpoint

EMBEDDING = {"model.embed_tokens.weight": Tensor((32, 8), "F16")}


@pytest.fixture
def clean(tmp_path: Path) -> tuple[Path, Path]:
    """A target and a drafter that fits it."""
    return write(tmp_path / "target", TARGET, EMBEDDING), write(tmp_path / "drafter", DFLASH, headers(DFLASH))


def test_a_clean_pair(cli: Cli, clean: tuple[Path, Path]) -> None:
    done = cli("lint", *clean, "--", "--speculative-algorithm", "DFLASH", "--context-length", "64").expect(0, "")
    assert "nothing found" in done.err and "not checked" not in done.err


def test_findings_are_lines_on_stdout(cli: Cli, clean: tuple[Path, Path]) -> None:
    target, drafter = clean
    (drafter / "config.json").write_text(json.dumps({**DFLASH, "hidden_act": "gelu"}))
    done = cli("lint", target, drafter, "--", "--speculative-num-draft-tokens", "7", "--quantization=fp8").expect(1)
    lines = done.out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["drafter-config", "block", "quantization"]
    assert all(line.endswith("]") for line in lines), "each names its source"
    assert "3 findings" in done.err


def test_folders_without_weights_say_so(cli: Cli, tmp_path: Path) -> None:
    done = cli("lint", write(tmp_path / "t", TARGET), write(tmp_path / "d", DFLASH)).expect(0, "")
    assert done.err.count("not checked:") == 3  # both models' tensors, and the flags


def test_shapes_by_name_and_engine_settings_pass_through(cli: Cli, clean: tuple[Path, Path]) -> None:
    cli("lint", *clean, "--", "@env:SGLANG_SIMULATE_ACC_LEN=4", "--model-path", "@shape:dense8b").expect(0)
    cli("lint", *clean, "--", "--model-path", "@shape:nope").expect(2, "")


@pytest.mark.parametrize("damage", ["none", "json", "list", "weights"])
def test_unusable_folders(cli: Cli, clean: tuple[Path, Path], damage: str) -> None:
    target, drafter = clean
    if damage == "none":
        (drafter / "config.json").unlink()
    elif damage == "weights":
        (drafter / "model.safetensors").write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00not a header at")
    else:
        (drafter / "config.json").write_text({"json": "{", "list": "[]"}[damage])
    done = cli("lint", target, drafter).expect(3, "")
    assert len(done.err.splitlines()) <= 3


def test_headers_alone_are_read(tmp_path: Path) -> None:
    """BF16 has no NumPy type; shape and type come from the header, and nothing is loaded."""
    folder = write(tmp_path / "m", TARGET)
    header = json.dumps({"a": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    assert read_checkpoint(folder).tensors == {"a": Tensor((2, 3), "BF16")}


def test_an_index_names_what_no_file_has(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", TARGET, EMBEDDING)
    index = {"weight_map": dict.fromkeys(("model.embed_tokens.weight", "lm_head.weight"), "x")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_checkpoint(folder).absent == ("lm_head.weight",)


def test_added_tokens_of_both_tokenizer_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "m", TARGET)
    assert read_checkpoint(folder).tokens is None
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"content": "<a>"}]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": {"7": {"content": "<b>"}}}))
    assert read_checkpoint(folder).tokens == {"<a>", "<b>"}


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match=r"no config\.json"):
        read_checkpoint(tmp_path / "nowhere")
