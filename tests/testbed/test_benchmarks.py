"""Benchmarks are named, not held: what the descriptions say, what is read, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed, InputUnusable, UsageFault
from specpilot_cli.deployment.requests import load_requests
from specpilot_cli.testbed.benchmarks import (
    BENCHMARKS,
    Benchmark,
    load_benchmark,
    prompt_of,
    read_hub,
    read_local,
    requests_of,
    split_of,
    write_requests,
)

ROWS: dict[str, dict[str, Any]] = {
    "gsm8k": {"question": " How many? \n", "answer": "2+2\n#### 4"},
    "math500": {"problem": "Find $x$.", "answer": "3"},
    "humaneval": {"task_id": "HumanEval/7", "entry_point": "f", "prompt": "\ndef f(x):\n    '''y'''\n"},
    "mbpp": {"task_id": 11, "prompt": "Write f.", "test_imports": ["import math"], "test_list": ["assert f(1)"]},
    "mtbench": {"prompt": ["First turn. ", "Second turn."]},
}


def local_copy(folder: Path, lines: list[dict[str, Any]], name: str = "gsm8k") -> Benchmark:
    """The named benchmark with a made-up local file in `folder`, its digest pinned."""
    data = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / f"{name}.jsonl").write_bytes(data)
    found = load_benchmark(name)
    assert found.local is not None
    local = found.local.model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
    return found.model_copy(update={"local": local})


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_description_is_valid_and_pins_what_it_names(name: str) -> None:
    found = load_benchmark(name)
    assert found.licence and found.credit
    assert found.local is not None or (found.hub.file and found.hub.sha256)


def test_an_unknown_benchmark_is_a_usage_fault() -> None:
    for name in ("gsm9k", "miniengine-stdlib", "../gpus/cpu"):
        with pytest.raises(UsageFault):
            load_benchmark(name)


def test_a_local_file_gives_its_prompts(tmp_path: Path) -> None:
    found = local_copy(tmp_path, [{"id": "gsm8k-0001", "source": "gsm8k", "prompt": "How?", "reference": "4"}])
    (prompt,) = read_local(found, tmp_path)
    assert (prompt.id, prompt.prompt, prompt.reference) == ("gsm8k-0001", "How?", "4")


def test_a_local_file_with_other_bytes_is_refused_unless_asked_for(tmp_path: Path) -> None:
    found = local_copy(tmp_path, [{"id": "a", "prompt": "b", "reference": None}])
    with open(tmp_path / "gsm8k.jsonl", "a") as file:
        file.write(json.dumps({"id": "c", "prompt": "d", "reference": None}) + "\n")
    with pytest.raises(InputUnusable, match="not the file that gsm8k"):
        read_local(found, tmp_path)
    assert [p.id for p in read_local(found, tmp_path, other_digest=True)] == ["a", "c"]


@pytest.mark.parametrize("line", ["[]", "{", '{"id": 1, "prompt": "x"}', '{"id": "x"}'])
def test_a_damaged_line_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "gsm8k.jsonl").write_text('{"id": "a", "prompt": "b", "reference": null}\n' + line + "\n")
    with pytest.raises(InputUnusable, match="line 2"):
        read_local(load_benchmark("gsm8k"), tmp_path, other_digest=True)


def test_a_missing_file_and_a_benchmark_without_one(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="cannot be read"):
        read_local(load_benchmark("gsm8k"), tmp_path)
    with pytest.raises(UsageFault):
        read_local(load_benchmark("math500"), tmp_path)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_an_item_of_the_hub_becomes_a_prompt(name: str) -> None:
    prompt = prompt_of(name, 3, ROWS[name])
    assert prompt.id.startswith(name + "-") and prompt.prompt == prompt.prompt.strip() != ""
    for field in ROWS[name]:
        if field in ("answer", "task_id", "entry_point", "test_imports", "test_list") and name not in (
            "humaneval",
            "mbpp",
        ):
            continue
        with pytest.raises(InputUnusable, match="item 3"):
            prompt_of(name, 3, {k: v for k, v in ROWS[name].items() if k != field})


def test_the_framing_of_code_items() -> None:
    assert prompt_of("mbpp", 0, ROWS["mbpp"]).prompt == (
        "Write f.\n\nYour code should pass these tests:\n\n```python\nimport math\nassert f(1)\n```"
    )
    human = prompt_of("humaneval", 0, ROWS["humaneval"])
    assert human.id == "humaneval-0007"
    assert human.prompt.startswith("Complete the Python function `f` below")
    assert human.prompt.endswith("```python\ndef f(x):\n    '''y'''\n```")
    assert prompt_of("gsm8k", 12, ROWS["gsm8k"]).reference == "4"
    assert prompt_of("mtbench", 0, ROWS["mtbench"]).id == "mtbench-0081"


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)


def test_the_hub_is_asked_for_the_pinned_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def load_dataset(path: str, name: str | None, *, split: str, revision: str) -> list[dict[str, Any]]:
        asked.update(path=path, name=name, split=split, revision=revision)
        return [ROWS["gsm8k"]]

    fake_module(monkeypatch, "datasets", load_dataset=load_dataset)
    found = load_benchmark("gsm8k")
    assert [p.id for p in read_hub(found)] == ["gsm8k-0000"]
    assert asked == {"path": "openai/gsm8k", "name": "main", "split": "test", "revision": found.hub.revision}


def test_a_hub_file_must_have_the_pinned_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(ROWS["math500"]) + "\n")
    fake_module(monkeypatch, "huggingface_hub", hf_hub_download=lambda *_, **__: str(path))
    found = load_benchmark("math500")
    with pytest.raises(InputUnusable, match="not the pinned file"):
        read_hub(found)
    hub = found.hub.model_copy(update={"sha256": hashlib.sha256(path.read_bytes()).hexdigest()})
    assert [p.id for p in read_hub(found.model_copy(update={"hub": hub}))] == ["math500-0000"]


def test_no_network_and_no_client_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> str:
        raise OSError("no route")

    fake_module(monkeypatch, "huggingface_hub", hf_hub_download=fails)
    with pytest.raises(ExternalFailed, match="could not be read"):
        read_hub(load_benchmark("math500"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(EnvironmentUnusable, match="datasets"):
        read_hub(load_benchmark("mbpp"))


def test_requests_can_be_loaded_as_any_request_set(tmp_path: Path) -> None:
    prompts = [prompt_of("gsm8k", n, {"question": f"How many {n}?", "answer": "#### 1"}) for n in range(40)]
    made = requests_of(load_benchmark("gsm8k"), prompts, lambda text: list(text.encode()))
    path = tmp_path / "gsm8k.jsonl"
    path.write_bytes(write_requests(made))
    loaded = [load_requests(str(path), split) for split in ("develop", "sealed")]
    assert sum(len(part.requests) for part in loaded) == 40
    for part in loaded:
        assert all(r.split == split_of(r.prompt) == part.record.split for r in part.requests)
        assert all(r.benchmark == "gsm8k" for r in part.requests)


@pytest.mark.skipif("TESTBED_PROMPTS" not in os.environ, reason="TESTBED_PROMPTS names no folder with the local draws")
@pytest.mark.parametrize("name", ["gsm8k", "humaneval", "mbpp", "mtbench"])
def test_the_local_draws_are_the_pinned_ones(name: str) -> None:
    found = load_benchmark(name)
    prompts = read_local(found, Path(os.environ["TESTBED_PROMPTS"]))
    assert found.local is not None and len(prompts) == found.local.requests
    assert {split_of(p.prompt) for p in prompts} == {"develop", "sealed"}
