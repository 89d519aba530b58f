"""Public benchmarks as prompt sets: named by hub id, revision and digest; read from the hub or from a local JSONL.

The data stays where it is: `profiles/requests/<id>.toml` says which data, and how an item becomes a prompt is here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from specpilot_cli.artifacts.base import Record, Sha256
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.core.paths import share_dir
from specpilot_cli.deployment.load import parse_toml
from specpilot_cli.deployment.requests import Request, Split

BENCHMARKS = ("gsm8k", "math500", "humaneval", "mbpp", "mtbench")
Revision = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class Hub(Record):
    """A dataset on the Hugging Face hub at one commit, which pins its content."""

    id: str
    revision: Revision
    split: str
    config: str = ""
    file: str = ""
    """A JSON-lines file of the dataset, read as it is; empty: the `datasets` package reads the split."""
    sha256: Sha256 | None = None
    """Of `file`; None where only the revision pins it."""


class Origin(Record):
    """The authors' own file."""

    repository: str
    path: str
    commit: str
    sha256: Sha256


class Local(Record):
    """A drawn subset in a local JSONL with the keys id, source, prompt, reference."""

    file: str
    sha256: Sha256
    requests: Annotated[int, Field(ge=1)]


class Benchmark(Record):
    """A file of `profiles/requests/` that names data instead of holding it."""

    id: str
    title: str
    licence: str
    credit: str
    items: Annotated[int, Field(ge=1)]
    """Items of the whole split."""
    max_new_tokens: Annotated[int, Field(ge=1)]
    split_rule: str
    hub: Hub
    origin: Origin | None = None
    local: Local | None = None


@dataclass(frozen=True)
class Prompt:
    """One user message, without chat template, system message or few-shot examples."""

    id: str
    prompt: str
    reference: str | None = None


def load_benchmark(name: str) -> Benchmark:
    """The description of a benchmark in `profiles/requests/`.

    Raises:
        UsageFault: there is none of this name. InputUnusable: it is not valid, or its id is not its file's name.
    """
    path = share_dir("profiles") / "requests" / f"{name}.toml"
    if name not in BENCHMARKS or not path.is_file():
        raise UsageFault(f"There is no benchmark '{name}'.", "", f"Known: {', '.join(BENCHMARKS)}.")
    found, _ = parse_toml(path, Benchmark)
    if found.id != name:
        raise InputUnusable(f"{path}: its id is '{found.id}'.", "File name and id must agree.")
    return found


def split_of(prompt: str) -> Split:
    """ "sealed" where the first byte of sha256 over the prompt's UTF-8 bytes is odd, else "develop"."""
    return "sealed" if hashlib.sha256(prompt.encode()).digest()[0] & 1 else "develop"


def read_local(benchmark: Benchmark, folder: Path, *, other_digest: bool = False) -> tuple[Prompt, ...]:
    """The prompts of the benchmark's local file in `folder`.

    Args:
        other_digest: take a file whose bytes are not the ones that the description pins.
    Raises:
        UsageFault: the benchmark names no local file. InputUnusable: missing, altered, or damaged (with the line).
    """
    if benchmark.local is None:
        raise UsageFault(f"{benchmark.id} has no local file.", "", "Read it from the hub.")
    path = folder / benchmark.local.file
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputUnusable(f"{path}: cannot be read.", error.strerror or str(error)) from None
    if not other_digest and sha256_bytes(data) != benchmark.local.sha256:
        raise InputUnusable(f"{path}: not the file that {benchmark.id}.toml pins.", f"sha256 is {sha256_bytes(data)}.")
    return tuple(_local_prompt(row, path, number) for number, row in enumerate(_rows(data, str(path)), start=1))


def _rows(data: bytes, shown: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputUnusable(f"{shown}: line {number} is no JSON.", str(error)) from None
        if not isinstance(row, dict):
            raise InputUnusable(f"{shown}: line {number} is no object.")
        rows.append(row)
    return rows


def _local_prompt(row: Mapping[str, Any], path: Path, number: int) -> Prompt:
    name, prompt, reference = row.get("id"), row.get("prompt"), row.get("reference")
    if not isinstance(name, str) or not isinstance(prompt, str) or not isinstance(reference, str | None):
        raise InputUnusable(f"{path}: line {number} is no prompt.", "It needs id, prompt and reference.")
    return Prompt(name, prompt, reference)


def read_hub(benchmark: Benchmark) -> tuple[Prompt, ...]:
    """All prompts of the benchmark's split, from the hub at the pinned revision.

    Raises:
        EnvironmentUnusable: the client package is not installed. ExternalFailed: the hub did not answer.
        InputUnusable: the file is not the pinned one, or an item lacks a field.
    """
    rows = _hub_file(benchmark.hub) if benchmark.hub.file else _hub_split(benchmark.hub)
    return tuple(prompt_of(benchmark.id, number, row) for number, row in enumerate(rows))


def _hub_file(hub: Hub) -> list[dict[str, Any]]:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise _missing("huggingface_hub") from None
    try:
        path = hf_hub_download(hub.id, hub.file, revision=hub.revision, repo_type="dataset")
        data = Path(path).read_bytes()
    except (OSError, ValueError) as error:  # the client's errors derive from these
        raise ExternalFailed(f"{hub.id} could not be read from the hub.", str(error), "Or use a local file.") from None
    if hub.sha256 is not None and sha256_bytes(data) != hub.sha256:
        raise InputUnusable(f"{hub.id}: {hub.file} is not the pinned file.", f"sha256 is {sha256_bytes(data)}.")
    return _rows(data, hub.file)


def _hub_split(hub: Hub) -> Iterable[Mapping[str, Any]]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise _missing("datasets") from None
    try:
        rows: Iterable[Mapping[str, Any]] = load_dataset(
            hub.id, hub.config or None, split=hub.split, revision=hub.revision
        )
    except (OSError, ValueError) as error:
        raise ExternalFailed(f"{hub.id} could not be read from the hub.", str(error), "Or use a local file.") from None
    return rows


def _missing(package: str) -> EnvironmentUnusable:
    return EnvironmentUnusable(f"The package {package} is missing.", "", f"pip install {package}, or use a local file.")


def _gsm8k(number: int, row: Mapping[str, Any]) -> Prompt:
    return Prompt(f"gsm8k-{number:04d}", row["question"].strip(), row["answer"].rpartition("####")[2].strip())


def _math500(number: int, row: Mapping[str, Any]) -> Prompt:
    return Prompt(f"math500-{number:04d}", row["problem"].strip(), row["answer"])


def _humaneval(number: int, row: Mapping[str, Any]) -> Prompt:
    asked = (
        f"Complete the Python function `{row['entry_point']}` below so that it does what its docstring says. "
        "Reply with the whole code in one Python code block."
    )
    return Prompt(f"humaneval-{int(row['task_id'].rpartition('/')[2]):04d}", f"{asked}\n\n{_code(row['prompt'])}")


def _mbpp(number: int, row: Mapping[str, Any]) -> Prompt:
    tests = "\n".join([*row["test_imports"], *row["test_list"]])
    text = f"{row['prompt'].strip()}\n\nYour code should pass these tests:\n\n{_code(tests)}"
    return Prompt(f"mbpp-{int(row['task_id']):04d}", text)


def _mtbench(number: int, row: Mapping[str, Any]) -> Prompt:
    return Prompt(f"mtbench-{81 + number:04d}", row["prompt"][0].strip())


def _code(text: str) -> str:
    return f"```python\n{text.strip()}\n```"


_RENDER: dict[str, Callable[[int, Mapping[str, Any]], Prompt]] = {
    "gsm8k": _gsm8k,
    "math500": _math500,
    "humaneval": _humaneval,
    "mbpp": _mbpp,
    "mtbench": _mtbench,
}


def prompt_of(name: str, number: int, row: Mapping[str, Any]) -> Prompt:
    """Item `number` (from 0) of a benchmark's split as a prompt.

    Raises:
        InputUnusable: a field is missing or of another type.
    """
    try:
        return _RENDER[name](number, row)
    except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
        raise InputUnusable(f"{name}: item {number} has another shape.", f"{type(error).__name__}: {error}") from None


def requests_of(
    benchmark: Benchmark, prompts: Iterable[Prompt], encode: Callable[[str], list[int]]
) -> tuple[Request, ...]:
    """Requests in the format of `deployment.requests`, split by the prompt's digest.

    Args:
        encode: token ids of a user message, chat template included.
    """
    return tuple(
        Request(
            id=p.id, split=split_of(p.prompt), prompt=p.prompt, input_ids=tuple(encode(p.prompt)),
            max_new_tokens=benchmark.max_new_tokens, benchmark=benchmark.id, source=f"hub:{benchmark.hub.id}",
        )
        for p in prompts
    )  # fmt: skip


def write_requests(requests: Iterable[Request]) -> bytes:
    """A request file: one JSON object a line, UTF-8."""
    return b"".join(r.model_dump_json().encode() + b"\n" for r in requests)
