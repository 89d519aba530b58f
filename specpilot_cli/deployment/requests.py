"""Request sets: JSONL files of fixed prompts, split into develop and sealed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from specpilot_cli.artifacts.base import Record, TokenId
from specpilot_cli.artifacts.deployment import RequestSetRecord
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.core.paths import share_dir

Split = Literal["develop", "sealed"]
SPLITS: tuple[Split, ...] = ("develop", "sealed")


class Request(Record):
    """One prompt."""

    id: str
    split: Split
    prompt: str
    input_ids: Annotated[tuple[TokenId, ...], Field(min_length=1)]
    max_new_tokens: Annotated[int, Field(ge=1)]
    benchmark: str = ""
    """Empty: the name of the set."""
    source: str = ""
    """Where the prompt was taken from."""


@dataclass(frozen=True)
class RequestSet:
    """One split of a request file."""

    record: RequestSetRecord
    requests: tuple[Request, ...]


def _parse(data: bytes, shown: str, name: str) -> list[Request]:
    found: dict[str, Request] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            request = Request.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(str(part) for part in first["loc"])
            raise InputUnusable(f"{shown}: line {number} is not a request.", f"{where}: {first['msg']}") from None
        if request.id in found:
            raise InputUnusable(f"{shown}: line {number} repeats the id '{request.id}'.")
        found[request.id] = request if request.benchmark else request.model_copy(update={"benchmark": name})
    return list(found.values())


def load_requests(ref: str, split: str, limit: int | None = None) -> RequestSet:
    """The `split` of a request set, by name (in `profiles/requests/`) or by path, in file order.

    Args:
        limit: take only the first so many.
    Raises:
        UsageFault: unknown set or split. InputUnusable: damaged file, or no request in the split.
    """
    if split not in SPLITS:
        raise UsageFault(f"There is no split '{split}'.", "", "Known: develop, sealed.")
    path = Path(ref) if ref.endswith(".jsonl") or "/" in ref else share_dir("profiles") / "requests" / f"{ref}.jsonl"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageFault(f"{path}: the request set cannot be read.", error.strerror or str(error)) from None
    chosen = tuple(r for r in _parse(data, str(path), path.stem) if r.split == split)[:limit]
    if not chosen:
        raise InputUnusable(f"{path}: no request in the split '{split}'.")
    record = RequestSetRecord(name=path.stem, sha256=sha256_bytes(data), split=split, ids=tuple(r.id for r in chosen))
    return RequestSet(record, chosen)
