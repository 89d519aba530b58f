"""One small valid artifact of every schema, built by the models themselves."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from specpilot_cli.artifacts.apply import AppliedEntry, ApplyArtifact, ApplyBody
from specpilot_cli.artifacts.base import Envelope, Environment, Source, Tool
from specpilot_cli.artifacts.ceiling import CeilingArtifact, FloorSettings
from specpilot_cli.artifacts.deployment import DeploymentRecord, DevicePeaks, RequestSetRecord, ServerRecord, Shape
from specpilot_cli.artifacts.profile import (
    Acceptance,
    AutoregressiveStep,
    KernelClass,
    ProfileArtifact,
    ProfileBody,
    RowsFit,
    RowTime,
    StepTimes,
)
from specpilot_cli.artifacts.seal import SealArtifact, SealBody

SHA = "0" * 64
TREE = "1" * 40


def fields(**changes: Any) -> dict[str, Any]:
    """The envelope's common part."""
    common: dict[str, Any] = {
        "created": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc),
        "tool": Tool(version="0.1.0", tree=SHA),
        "inputs": (Source(name="input.json", sha256=SHA),),
        "environment": Environment(
            platform="Linux",
            cpu="a cpu",
            logical_cpus=2,
            memory_bytes=2**34,
            python="3.11.7",
            packages={"torch": "2.13.0"},
        ),
        "complete": True,
    }
    return {**common, **changes}


def deployment() -> DeploymentRecord:
    """A deployment of the embedded engine."""
    return DeploymentRecord(
        id="mini", engine="miniengine", model="m", drafter="dflash2", gpu="cpu",
        shape=Shape(concurrency=1, max_new_tokens=32), server_args=("--num-threads", "1"), file_sha256=SHA,
    )  # fmt: skip


def server() -> ServerRecord:
    """A server that was measured."""
    return ServerRecord(tree=TREE, base_tree=TREE, argv=("python",), info={"vocab_size": 1024, "num_threads": 1})


def requests() -> RequestSetRecord:
    """Two develop requests."""
    return RequestSetRecord(name="set", sha256=SHA, split="develop", ids=("a", "b"))


def profile_body(**changes: Any) -> ProfileBody:
    """Round figures: step 10 ms of which 8 ms in two classes, τ 4, oracle 6, AR 5 ms."""
    classes = (
        KernelClass(phase="verify", name="gemm", time_ms=6.0, calls=10, flop=0.6e6, bytes=1.8e6),
        KernelClass(phase="verify", name="recurrent", time_ms=2.0, calls=5, flop=1.2e6, bytes=0.9e6),
    )
    values: dict[str, Any] = {
        "deployment": deployment(),
        "server": server(),
        "requests": requests(),
        "device": DevicePeaks(
            id="cpu", peak_flop_per_s=1e9, peak_bytes_per_s=1e9, measured_bytes_per_s=1e9, source="made up"
        ),
        "step": StepTimes(
            step_ms=10.0, phases_ms={"draft": 2.0, "verify": 7.0}, profiled_ms=8.0, outside_ms=2.0,
            profiler_inflation=1.2, steps=2, samples_ms=(9.0, 11.0),
        ),
        "classes": classes,
        "acceptance": Acceptance(
            tau=4.0, verify_steps=10, correct_drafts=30, completion_tokens=40, position_rate=(0.9, 0.8),
            oracle_tau=6.0, oracle_chain_tau=4.0, oracle_steps=9, candidates=16,
        ),
        "autoregressive": AutoregressiveStep(step_ms=5.0, samples_ms=(5.0,)),
        "rows": (RowTime(rows=1, samples_ms=(1.0,), median_ms=1.0),),
        "rows_fit": RowsFit(base_ms=1.0, flat_rows=1, per_row_ms=0.0, max_residual=0.0),
        "relative_cost": 2.0,
        "speedup_over_ar": 2.0,
    }  # fmt: skip
    return ProfileBody(**{**values, **changes})


def profile_artifact() -> ProfileArtifact:
    """A profile."""
    return ProfileArtifact(**fields(), body=profile_body())


def ceiling_artifact() -> CeilingArtifact:
    """The ceiling of that profile."""
    from specpilot_cli.costmodel.ceiling import compute

    body, caveats = compute(profile_body(), FloorSettings())
    return CeilingArtifact(**fields(caveats=caveats), body=body)


def apply_artifact() -> ApplyArtifact:
    """A composition that reproduced."""
    entry = AppliedEntry(id="tree", status="unmeasured", delta_sha256=SHA, paths=("a.py",))
    body = ApplyBody(
        engine="miniengine",
        base_tree=TREE,
        entries=(entry,),
        tree=TREE,
        expected_tree=TREE,
        reproduces=True,
        first_difference=None,
        worktree="wt",
    )
    return ApplyArtifact(**fields(), body=body)


def seal_artifact() -> SealArtifact:
    """A seal whose signature is nobody's."""
    return SealArtifact(
        **fields(), body=SealBody(statement_json="{}", signature="none", signer="nobody", public_key="ssh-ed25519 AAAA")
    )


def every() -> dict[str, Envelope]:
    """Schema name → a valid artifact, for the schemas that need no engine to make one."""
    from support.forced import pair_artifact, pair_body

    pair = pair_artifact(pair_body({"r0": [1, 2], "r1": [3]}))
    return {
        "profile": profile_artifact(),
        "ceiling": ceiling_artifact(),
        "apply": apply_artifact(),
        "pair-run": pair,
        "seal": seal_artifact(),
    }
