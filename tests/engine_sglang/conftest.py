"""Fixtures: a wheel, a clone and a manifest of the made-up engine."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from engine_sglang.wheels import BUILT, FILES, INFO, MakeWheel, digest, made_up_manifest, write_clone

from specpilot_cli.engine.sglang.manifest import Manifest


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """The made-up release's manifest."""
    return made_up_manifest(tmp_path / "manifest")


@pytest.fixture
def make_wheel(tmp_path: Path) -> MakeWheel:
    """Writes a wheel. `changed`: what the archive holds instead; `recorded`: what RECORD vouches for instead."""

    def make(
        changed: dict[str, bytes | None] | None = None, *, recorded: bool = False, version: str = "0.5.20"
    ) -> Path:
        metadata = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n".encode()
        info = INFO.replace("0.5.20", version)
        honest: dict[str, bytes] = {**FILES, **BUILT, f"{info}/METADATA": metadata}
        held = {name: data for name, data in {**honest, **(changed or {})}.items() if data is not None}
        listed = held if recorded else honest
        quoted = {name: f'"{name}"' if "," in name else name for name in listed}
        record = "".join(f"{quoted[name]},{digest(data)},{len(data)}\n" for name, data in listed.items())
        path = tmp_path / f"sglang-{version}-cp312-cp312-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in held.items():
                archive.writestr(name, data)
            archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
        return path

    return make


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone at the tag: source below python/, a linked README, unpackaged files, build products."""
    return write_clone(tmp_path / "clone")
