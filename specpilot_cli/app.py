"""The command tree. Every command's module is imported only when its command runs or its help is asked for."""

from __future__ import annotations

import typer

from specpilot_cli import __version__
from specpilot_cli.core import console
from specpilot_cli.core.exit_codes import MEANING

EPILOG = "Exit codes: " + " · ".join(f"{int(code)} {text}" for code, text in MEANING.items())


def _version(value: bool) -> None:
    if value:
        console.emit(f"specpilot {__version__}")
        raise typer.Exit


def root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no notes on stderr."),
) -> None:
    """Find and keep lossless speedups of speculative decoding, one deployment at a time.

    Stages read and write JSON artifacts, so the loop is a shell pipeline:

      specpilot stock init wt/stock --engine miniengine

      p=$(specpilot profile wt/stock) && specpilot ceiling "$p" -o -

      specpilot memory apply tree --stock wt/stock --worktree wt/tree

      specpilot pair-run wt/stock --noise -o noise.json

      specpilot pair-run wt/stock wt/tree --noise-from noise.json -o pair.json

      specpilot force-tokens pair.json --scorer wt/stock -o forced.json

    Try `specpilot demo` first: all of it on the embedded engine, in about two minutes on a CPU.
    """
    console.set_quiet(quiet)


def build() -> typer.Typer:
    """The whole command tree."""
    from specpilot_cli.commands import COMMANDS

    app = typer.Typer(
        name="specpilot",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        epilog=EPILOG,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(root)
    for attach in COMMANDS:
        attach(app)
    return app
