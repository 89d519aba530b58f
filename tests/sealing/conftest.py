"""One chain of evidence and its seal, made once; every test works on a copy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.sealed import Chain

from specpilot_cli.artifacts.io import dump, load
from specpilot_cli.controller.judge import judge
from specpilot_cli.forcing.thresholds import load_thresholds
from specpilot_cli.sealing import sign
from specpilot_cli.sealing.make import checked, seal


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Evidence, `seal.json`, and the signing key's folder `config`."""
    folder = tmp_path_factory.mktemp("sealed")
    chain = Chain(folder).write()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECPILOT_CONFIG", str(folder / "config"))
        thresholds = load_thresholds()
        evidence = checked([load(name) for name in chain.names], (), thresholds, judge)
        (folder / "seal.json").write_bytes(dump(seal(evidence, thresholds, sign.default_key())))
    yield folder


@pytest.fixture
def room(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private copy; the key in it is the user's."""
    copy = tmp_path / "room"
    shutil.copytree(made, copy)
    monkeypatch.setenv("SPECPILOT_CONFIG", str(copy / "config"))
    return copy
