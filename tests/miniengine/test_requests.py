"""The request set is what its description says."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "profiles" / "requests" / "miniengine-stdlib.jsonl"
CHECKPOINT = ROOT / "specpilot_cli" / "engine" / "miniengine" / "checkpoint"
REQUESTS = [json.loads(line) for line in FILE.read_text().splitlines()]
ABOUT = tomllib.loads(FILE.with_suffix(".toml").read_text())


def test_description_matches_the_file() -> None:
    assert ABOUT["id"] == FILE.stem
    assert ABOUT["sha256"] == hashlib.sha256(FILE.read_bytes()).hexdigest()
    assert ABOUT["requests"] == len(REQUESTS) >= 64
    for split in ("develop", "sealed"):
        assert ABOUT[split] == sum(r["split"] == split for r in REQUESTS) >= 24
    lengths = [len(r["input_ids"]) for r in REQUESTS]
    assert ABOUT["prompt_tokens"] == [min(lengths), max(lengths)]


def test_prompts_are_distinct_and_from_distinct_files() -> None:
    for key in ("id", "prompt", "source"):
        assert len({r[key] for r in REQUESTS}) == len(REQUESTS)


def test_split_follows_the_digest() -> None:
    for request in REQUESTS:
        odd = hashlib.sha256(json.dumps(request["input_ids"]).encode()).digest()[0] & 1
        assert request["split"] == ("sealed" if odd else "develop")


def test_token_ids_are_the_text() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    for request in REQUESTS:
        assert tokenizer.encode(request["prompt"]).ids == request["input_ids"]


def test_checkpoint_is_small_and_its_manifest_is_true() -> None:
    manifest = json.loads((CHECKPOINT / "manifest.json").read_text())
    assert sum(p.stat().st_size for p in CHECKPOINT.iterdir()) <= 8 * 2**20
    assert manifest["text"]["sha256"] == ABOUT["source_sha256"]
    for name, entry in manifest["files"].items():
        data = (CHECKPOINT / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
