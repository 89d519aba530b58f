"""Records that several bodies share: the deployment that was measured, the requests, what a server said of itself."""

from __future__ import annotations

from pydantic import JsonValue

from specpilot_cli.artifacts.base import Count, GitTree, Positive, Record, Sha256


class Shape(Record):
    """The serving shape."""

    concurrency: Count
    """Requests in flight at a time."""
    max_new_tokens: Count


class DeploymentRecord(Record):
    """Target, drafter, GPU and serving shape on one engine, resolved."""

    id: str
    engine: str
    """`miniengine` or `sglang-0.5.20`."""
    model: str
    drafter: str
    gpu: str
    """Id of a file in `profiles/gpus/`."""
    shape: Shape
    server_args: tuple[str, ...]
    """Engine flags, verbatim."""
    file_sha256: Sha256
    """Digest of the deployment file that was read."""


class RequestSetRecord(Record):
    """A fixed request set, or one split of it."""

    name: str
    sha256: Sha256
    """Digest of the whole file."""
    split: str
    """`develop` or `sealed`."""
    ids: tuple[str, ...]


class ServerRecord(Record):
    """One server that was measured."""

    tree: GitTree
    """Git tree id of the engine worktree."""
    base_tree: GitTree
    """Git tree id of the stock commit the worktree grew from."""
    argv: tuple[str, ...]
    info: dict[str, JsonValue]
    """The engine's whole `/server_info` (resolved configuration)."""


class DevicePeaks(Record):
    """What the device could do, for byte floors."""

    id: str
    peak_flop_per_s: Positive
    """Dense peak in the deployment's arithmetic type."""
    peak_bytes_per_s: Positive
    measured_bytes_per_s: Positive | None
    """Read bandwidth measured on this machine, beside the data sheet's."""
    source: str
