"""A controller over the small stock repository and a `specpilot` that does what a plan says."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from support.forced import PROMPT, pair_artifact, pair_body, sample, server_record
from support.mini_repo import head_tree, mini_repo, raw_git
from support.samples import SHA, fields, profile_artifact, seal_artifact

from specpilot_cli.agents.controller.settings import Design, Settings
from specpilot_cli.agents.controller.stages import Stages
from specpilot_cli.agents.journal import Journal
from specpilot_cli.artifacts.base import Envelope
from specpilot_cli.artifacts.forcing import ForcedRequest, ForcedSide, ForcingArtifact, ForcingBody
from specpilot_cli.artifacts.pair_run import ArmSummary, Estimate

FAKE = Path(__file__).with_name("fake_specpilot.py")
SIDE = ForcedSide(
    requests=2, tokens=100, mismatches=1, ties=0, rate=0.01, large_events=0, explained_events=0, max_margin_nats=0.1,
    ended_early=0, unforced_samples=0,
)  # fmt: skip
REQUEST = ForcedRequest(
    request_id="r0", arms=("stock",), output_sha256=SHA, tokens=2, shared_tokens=2, ties=0, tokens_by_binade={},
    ended_early=False, mismatches=(),
)  # fmt: skip


def _json(artifact: Envelope) -> dict[str, Any]:
    found: dict[str, Any] = artifact.model_dump(mode="json", by_alias=True)
    return found


def templates() -> dict[str, Any]:
    """A valid artifact of every stage."""
    speed = ArmSummary(tau=2.0, output_tokens_per_s=100.0, tpot_ms=10.0)
    pair = pair_body(
        {"r0": [1, 2], "r1": [3]},
        gain=Estimate(ratio=1.2, low=1.15, high=1.25, resamples=10, method="none"),
        bar=0.03,
        summary={"stock": speed, "candidate": speed.model_copy(update={"tau": 3.0})},
    )
    forced = ForcingBody(
        scorer=server_record(), fp32_lm_head=True, compute_dtype="float32", kv_cache_dtype="float32", delta_nats=0.25,
        delta_source="default", outputs_from=SHA, sides={"candidate": SIDE, "stock": SIDE},
    )  # fmt: skip
    return {
        "pair": _json(pair_artifact(pair)),
        "sample": sample("stock", "r0", PROMPT).model_dump(mode="json"),
        "forced": _json(ForcingArtifact(**fields(), body=forced)),
        "request": REQUEST.model_dump(mode="json"),
        "profile": _json(profile_artifact()),
        "seal": _json(seal_artifact()),
    }


def wait_for(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Poll until `condition` is true; its value."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


class Lab:
    """The stock repository, the fake's folder, and the controller's."""

    def __init__(self, root: Path) -> None:
        self.stock, self.fake, self.folder = mini_repo(root / "stock"), root / "fake", root / "controller"
        self.base, self._root = head_tree(self.stock), root
        self.fake.mkdir()
        (self.fake / "templates.json").write_text(json.dumps(templates()))
        self.plan()

    def plan(self, **roles: list[Any]) -> None:
        """What the stages will do, by role; starts are counted from the lab's beginning."""
        (self.fake / "plan.json").write_text(json.dumps(roles))

    def settings(self, design: Mapping[str, Any] | None = None, **changes: Any) -> Settings:
        """The fake as command, everything else at its default."""
        values: dict[str, Any] = {
            "stock": str(self.stock),
            "base_tree": self.base,
            "deployment": "fake",
            "command": (sys.executable, "-S", str(FAKE), str(self.fake)),
            "design": Design(**(design or {})),
        }
        return Settings(**{**values, **changes})

    @contextmanager
    def stages(self, **changes: Any) -> Iterator[Stages]:
        """The controller's work in this process."""
        self.folder.mkdir(exist_ok=True)
        with Journal(self.folder / "journal.jsonl") as journal:
            yield Stages(self.folder, self.settings(**changes), journal)

    def starts(self, role: str | None = None) -> list[dict[str, Any]]:
        """Every start of a stage so far."""
        path = self.fake / "starts.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [start for start in found if role in (None, start["role"])]

    def tree(self, files: Mapping[str, bytes | tuple[str, str]] | None = None) -> str:
        """Stock with these files; a tuple is (mode, object id or link target)."""
        files = {"engine/fast.py": b"fast = True\n"} if files is None else files
        index = str(self._root / "index")
        raw_git(self.stock, "read-tree", self.base, GIT_INDEX_FILE=index)
        for name, data in files.items():
            mode, blob = ("100644", self.blob(data)) if isinstance(data, bytes) else (data[0], data[1])
            entry = f"{mode},{blob},{name}"
            add = ("-c", "core.protectNTFS=false", "update-index", "--add", "--cacheinfo", entry)
            raw_git(self.stock, *add, GIT_INDEX_FILE=index)
        return raw_git(self.stock, "write-tree", GIT_INDEX_FILE=index)

    def blob(self, data: bytes) -> str:
        """An object of the stock repository."""
        source = self._root / "blob"
        source.write_bytes(data)
        return raw_git(self.stock, "hash-object", "-w", str(source))


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
