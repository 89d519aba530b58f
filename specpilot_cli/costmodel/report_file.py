"""Reads the figures of a public report: `profiles/reports/ID.toml`, or any file of that form."""

from __future__ import annotations

from pathlib import Path

from specpilot_cli.artifacts.base import Source
from specpilot_cli.artifacts.figures import ReportFile
from specpilot_cli.core.digest import sha256_bytes
from specpilot_cli.core.errors import InputUnusable, UsageFault
from specpilot_cli.core.paths import share_dir
from specpilot_cli.deployment.load import parse_toml


def load_report(ref: str) -> tuple[ReportFile, Source]:
    """A report by id or path, and the digest of its file.

    Raises:
        UsageFault: unknown id. InputUnusable: not valid, no figures in it, or its name is not its id.
    """
    path = Path(ref) if ref.endswith(".toml") or "/" in ref else _shipped(ref)
    report, data = parse_toml(path, ReportFile)
    if report.id != path.stem:
        raise InputUnusable(f"{path}: its id is '{report.id}'.", "File name and id must agree.")
    if not report.runs and report.table is None:
        raise InputUnusable(f"{path}: no figures.", "", "Give [[runs]] or a [table].")
    return report, Source(name=path.name, sha256=sha256_bytes(data))


def _shipped(ref: str) -> Path:
    folder = share_dir("profiles") / "reports"
    path = folder / f"{ref}.toml"
    if not path.is_file():
        known = ", ".join(sorted(item.stem for item in folder.glob("*.toml"))) or "none"
        raise UsageFault(f"There is no report '{ref}'.", "", f"Known: {known}; or give a path to a .toml file.")
    return path
