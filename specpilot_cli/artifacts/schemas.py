"""JSON Schema export. `python -m specpilot_cli.artifacts.schemas` rewrites `json_schemas/`; a test compares."""

from __future__ import annotations

import json
from pathlib import Path

from specpilot_cli.artifacts import registry

FOLDER = Path(__file__).parent / "json_schemas"


def render(name: str) -> str:
    """The schema of one artifact as text, stable from run to run."""
    generated = registry.model(name).model_json_schema(by_alias=True, mode="serialization")
    document = {"$schema": "https://json-schema.org/draft/2020-12/schema", **generated}
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_all() -> None:
    """Rewrite the committed schemas."""
    FOLDER.mkdir(exist_ok=True)
    for name in registry.NAMES:
        (FOLDER / f"{name}.json").write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    write_all()
