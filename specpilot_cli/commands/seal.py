"""`specpilot seal`: a signed statement over paired runs and forced outputs, and its verification."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from specpilot_cli.commands._options import Out
from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import ExitCode

if TYPE_CHECKING:
    from specpilot_cli.sealing.evidence import PairJudge
    from specpilot_cli.sealing.verify import Outcome


class _MakeByDefault(TyperGroup):
    """`seal PAIR …` is `seal make PAIR …`; a file that is called `verify` needs `./verify`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Put `make` in front of what is no sub-command."""
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["make", *args]
        return super().parse_args(ctx, args)


group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, cls=_MakeByDefault)


@group.callback()
def seal() -> None:
    """Sign what two paired runs and their token forcing have shown (seal PAIR PAIR FORCED FORCED), or verify a seal."""


def _judge() -> PairJudge:
    from specpilot_cli.controller.judge import judge

    return judge


@group.command()
def make(
    artifacts: Annotated[
        list[str],
        typer.Argument(metavar="ARTIFACT...", help="Two pair-runs on sealed requests, the forcing of each, noise run."),
    ],
    seen: Annotated[
        list[str] | None,
        typer.Option("--seen", metavar="ARTIFACT", help="A profile or pair-run of the round; repeatable."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Private key.", show_default="the controller's own, made on first use")
    ] = None,
    out: Out = None,
) -> None:
    """Check the chain from requests to verdicts, and sign an in-toto statement about the candidate's tree.

    Example: specpilot seal pair-1.json pair-2.json forced-1.json forced-2.json -o seal.json
    """
    from specpilot_cli.artifacts.io import Writer, load
    from specpilot_cli.forcing.thresholds import load_thresholds
    from specpilot_cli.sealing import sign
    from specpilot_cli.sealing.make import checked
    from specpilot_cli.sealing.make import seal as sealed

    thresholds = load_thresholds()
    given = [load(name, "pair-run", "forcing") for name in artifacts]
    read = [load(name, "profile", "pair-run", allow_incomplete=True) for name in seen or ()]
    evidence = checked(given, read, thresholds, _judge())
    chosen = key or sign.default_key()
    sign.public_key(chosen)
    writer = Writer(out, "seal")
    artifact = sealed(evidence, thresholds, chosen)
    body = evidence.runs[0].pair.artifact.body
    writer.finish(artifact)
    console.verdict(f"SEALED: tree {body.candidate.tree} on {body.deployment.id}, {len(body.requests.ids)} requests")
    console.say(f"signed by {sign.PRINCIPAL} {sign.fingerprint(artifact.body.public_key)}")
    console.say(f"next: specpilot seal verify {writer.path or 'SEAL'}")


@group.command()
def verify(
    seal: Annotated[str, typer.Argument(help="The seal.", metavar="SEAL")],
    evidence: Annotated[
        list[Path] | None,
        typer.Option("--evidence", help="Folder of the files it names; repeatable.", show_default="the seal's folder"),
    ] = None,
    allowed_signers: Annotated[
        Path | None,
        typer.Option("--allowed-signers", help="Trusted keys (ssh format).", show_default="the controller's"),
    ] = None,
) -> None:
    """Check a seal's signature, then every file that it names, and print the statement.

    Example: specpilot seal verify seal.json --evidence runs/
    """
    from specpilot_cli.core.paths import config_dir, share_dir
    from specpilot_cli.sealing.sign import SIGNERS_NAME
    from specpilot_cli.sealing.verify import verify as check

    folders = [*(evidence or ()), Path(seal).parent, share_dir("profiles")]
    outcome = check(seal, folders, allowed_signers or config_dir() / SIGNERS_NAME, _judge())
    raise typer.Exit(_tell(Path(seal).name, outcome))


def _tell(name: str, outcome: Outcome) -> ExitCode:
    from specpilot_cli.sealing import verify as results

    match outcome:
        case results.Verified(statement, signer, mark):
            console.emit(statement.model_dump_json(by_alias=True, exclude_none=True))
            console.verdict(f"{name}: verified; signed by {signer} {mark}")
            return ExitCode.OK
        case results.Damaged(file, why):
            console.verdict(f"{file}: damaged: {why}.")
            return ExitCode.INPUT
        case results.UnknownKey(public_key, mark):
            console.verdict(f"{name}: signed by a key that is not trusted here: {mark} ({public_key})")
        case results.BadSignature(file, mark):
            console.verdict(f"{file}: the signature of {mark} does not fit the statement.")
        case results.Missing(file, looked_in):
            console.verdict(f"{file}: not found in {', '.join(looked_in)}.")
        case results.Changed(file, sealed, found):
            console.verdict(f"{file}: changed since it was sealed: sha256 {found}, sealed {sealed}.")
        case results.Contradiction(file, why):
            console.verdict(f"{file}: does not follow from its evidence: {why}")
    return ExitCode.NEGATIVE


def attach(app: typer.Typer) -> None:
    """Add the group."""
    app.add_typer(group, name="seal")
