"""`specpilot w12`: checkpoints in the lossless 12-bit format."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import ExitCode
from specpilot_cli.w12 import SKIP

if TYPE_CHECKING:
    from specpilot_cli.artifacts.w12_audit import W12AuditBody

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Checkpoint = Annotated[Path, typer.Argument(help="A safetensors file, or a folder of them.")]
Skip = Annotated[str, typer.Option("--skip", help="Regular expression: tensors that stay as they are.")]


@group.callback()
def w12() -> None:
    """Audit, pack and verify checkpoints in W12, the lossless 12-bit weight format."""


@group.command()
def audit(
    checkpoint: Checkpoint,
    skip: Skip = SKIP,
    gpu_memory_gb: Annotated[float, typer.Option(min=1, help="Memory of the GPU, 10^9 bytes.")] = 80.0,
    usable: Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of it for weights and cache.")] = 0.9,
    out: Out = None,
) -> None:
    """Say what W12 would make of a checkpoint: bits a weight, escapes, memory and cache tokens gained.

    Example: specpilot w12 audit Qwen3.8-27B/ -o audit.json
    """
    from specpilot_cli.artifacts.base import Source, envelope_fields
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.artifacts.w12_audit import W12AuditArtifact
    from specpilot_cli.w12 import audit as domain
    from specpilot_cli.w12.shards import open_checkpoint
    from specpilot_cli.w12.stream import Choice

    shards = open_checkpoint(checkpoint)
    choice = Choice(skip)
    folder = checkpoint if checkpoint.is_dir() else checkpoint.parent
    per_token = domain.kv_bytes_per_token(folder)
    # the header alone is digested: the data is read once, for the audit itself
    inputs = tuple(Source(name=f"{s.path.name} (header)", sha256=s.header_sha256) for s in shards)
    writer = Writer(out, "w12-audit")

    def artifact(complete: bool) -> W12AuditArtifact:
        found = tuple(tensors)
        sums = domain.totals(shards, found)
        kv = domain.kv_cache(sums, per_token, int(gpu_memory_gb * 1e9), usable)
        body = domain.body(checkpoint, skip, found, sums, kv)
        return W12AuditArtifact(**envelope_fields(inputs=inputs, complete=complete), body=body)

    tensors = []
    for found in domain.audits(shards, choice):
        console.say(f"{found.name}: {found.bits_per_weight:.3f} bits, {found.escape_rate:.2e} escapes")
        tensors.append(found)
        writer.checkpoint(artifact(complete=False))
    final = artifact(complete=True)
    _tell(final.body)
    writer.finish(final)


def _tell(body: W12AuditBody) -> None:
    from specpilot_cli.commands._tables import table

    sums, worst = body.totals, sorted(body.tensors, key=lambda t: -t.escape_rate)[:5]
    table(
        "Most escapes",
        ("tensor", "bits", "escapes", "worst channel", "15 exponents a tensor", "entropy"),
        [
            (
                t.name,
                f"{t.bits_per_weight:.3f}",
                f"{t.escape_rate:.2e}",
                f"{t.worst_channels[0].channel}: {t.worst_channels[0].escapes}" if t.worst_channels else "none",
                f"{t.per_tensor_bits:.3f}",
                f"{t.entropy_bits:.3f}",
            )
            for t in worst
        ],
    )
    console.verdict(
        f"{sums.tensors} matrices: {sums.bits_per_weight:.3f} bits a weight ({sums.escape_rate:.2e} escapes), "
        f"{sums.bytes_checkpoint / 1e9:.2f} → {sums.bytes_checkpoint_packed / 1e9:.2f} GB; "
        f"at one row at most {sums.one_row_speedup_bound:.2f}× by bytes."
    )
    if body.kv_cache:
        kv = body.kv_cache
        console.verdict(f"Cache of {kv.gpu_memory_bytes / 1e9:.0f} GB: {kv.tokens_source} → {kv.tokens_packed} tokens.")


@group.command()
def pack(
    checkpoint: Checkpoint,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the packed files.")],
    skip: Skip = SKIP,
) -> None:
    """Pack a checkpoint, file by file; called again it goes on where it was interrupted.

    Example: specpilot w12 pack Qwen3.8-27B/ -o Qwen3.8-27B-w12/
    """
    from specpilot_cli.w12 import pack as domain
    from specpilot_cli.w12.shards import open_checkpoint
    from specpilot_cli.w12.stream import Choice

    paths = domain.pack(open_checkpoint(checkpoint), Choice(skip), out, console.say)
    console.say(f"Next: specpilot w12 verify {out} --source {checkpoint}")
    for path in paths:
        console.emit(str(path))


@group.command()
def verify(
    packed: Annotated[Path, typer.Argument(metavar="PACK", help="A packed file, or a folder of them.")],
    source: Annotated[
        Path | None, typer.Option("--source", help="Checkpoint it was made from.", show_default="check sums alone")
    ] = None,
    out: Out = None,
) -> None:
    """Decode a pack and compare every bit; names the first tensor and channel that is wrong (exit 1).

    Example: specpilot w12 verify Qwen3.8-27B-w12/ --source Qwen3.8-27B/
    """
    from specpilot_cli.artifacts.base import Source, envelope_fields
    from specpilot_cli.artifacts.io import Writer
    from specpilot_cli.artifacts.w12_verify import W12VerifyArtifact, W12VerifyBody
    from specpilot_cli.w12.shards import open_checkpoint
    from specpilot_cli.w12.verify import verify as compare

    packs = open_checkpoint(packed)
    sources = open_checkpoint(source) if source else None
    writer = Writer(out, "w12-verify")
    result = compare(packs, sources, console.say)
    body = W12VerifyBody(
        pack=str(packed),
        source=str(source) if source else None,
        tensors_packed=result.packed,
        tensors_raw=result.raw,
        bytes_compared=result.bytes_compared,
        difference=result.difference,
    )
    inputs = tuple(Source(name=f"{s.path.name} (header)", sha256=s.header_sha256) for s in [*packs, *(sources or [])])
    writer.finish(W12VerifyArtifact(**envelope_fields(inputs=inputs), body=body))
    if result.difference:
        where = f", channel {result.difference.channel}" if result.difference.channel is not None else ""
        console.verdict(f"WRONG {result.difference.tensor}{where}: {result.difference.what}.")
        raise typer.Exit(ExitCode.NEGATIVE)
    console.verdict(f"Right: {result.packed} packed and {result.raw} other tensors, {result.bytes_compared} bytes.")


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="w12")
