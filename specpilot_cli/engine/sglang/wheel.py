"""Stock source from a wheel: every file is checked against the wheel's own RECORD, then against the manifest."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from email.parser import BytesParser
from pathlib import Path

from specpilot_cli.core.errors import EnvironmentUnusable
from specpilot_cli.engine.sglang.manifest import Manifest, blob_id, is_source, require_stock

MAX_FILE_BYTES = 64 * 2**20
UNHASHED = ("RECORD", "RECORD.jws", "RECORD.p7s")
"""Files of the dist-info that RECORD lists without a digest (packaging.python.org, binary distribution format)."""


def wheel_files(path: Path, manifest: Manifest) -> dict[str, bytes]:
    """Stock files of a wheel, path to bytes.

    Raises:
        EnvironmentUnusable: unreadable, another package or version, a file that RECORD does not vouch for or that is
            not stock's; the message names it.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            _require_version(archive, path, manifest)
            files = _recorded_files(archive, path, manifest)
    except (OSError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise EnvironmentUnusable(f"{path}: not a readable wheel.", str(error)) from None
    source = {name: data for name, data in files.items() if is_source(name)}
    require_stock({name: blob_id(data) for name, data in source.items()}, manifest, str(path), extra=source)
    return dict(sorted(source.items()))


def _dist_info(manifest: Manifest) -> str:
    return f"sglang-{manifest.version}.dist-info"


def _require_version(archive: zipfile.ZipFile, path: Path, manifest: Manifest) -> None:
    named = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA") and name.count("/") == 1]
    if len(named) != 1:
        raise EnvironmentUnusable(f"{path}: not a wheel.", f"It has {len(named)} dist-info/METADATA files.")
    fields = BytesParser().parsebytes(archive.read(named[0]))
    found = (str(fields["Name"]).lower(), str(fields["Version"]))
    if found != ("sglang", manifest.version) or named[0] != f"{_dist_info(manifest)}/METADATA":
        raise EnvironmentUnusable(
            f"{path}: is {found[0]} {found[1]}, not sglang {manifest.version}.",
            f"So says {named[0]}.",
            f"pip download --no-deps sglang=={manifest.version}",
        )


def _recorded_files(archive: zipfile.ZipFile, path: Path, manifest: Manifest) -> dict[str, bytes]:
    record = _record(archive, path, manifest)
    members = {item.filename: item for item in archive.infolist() if not item.is_dir()}
    for name in sorted(set(record) ^ set(members)):
        fault = "is in RECORD but not in the archive" if name in record else "is not in RECORD"
        raise EnvironmentUnusable(f"{path}: {name} {fault}.", "The wheel is damaged.", "Download it again.")
    files = {}
    for name, item in members.items():
        if item.file_size > MAX_FILE_BYTES:
            raise EnvironmentUnusable(f"{path}: {name} is larger than {MAX_FILE_BYTES >> 20} MiB.")
        try:
            files[name] = archive.read(item)
        except zipfile.BadZipFile as error:
            raise EnvironmentUnusable(f"{path}: {name} cannot be unpacked.", str(error), "Download it again.") from None
        if not _vouched(files[name], *record[name], name=name, manifest=manifest):
            raise EnvironmentUnusable(
                f"{path}: {name} does not have the digest in RECORD.", "The wheel is damaged.", "Download it again."
            )
    return files


def _record(archive: zipfile.ZipFile, path: Path, manifest: Manifest) -> dict[str, tuple[str, str]]:
    """RECORD as path -> (digest, size), both as written there."""
    name = f"{_dist_info(manifest)}/RECORD"
    try:
        text = archive.read(name).decode("utf-8")
        rows = list(csv.reader(io.StringIO(text)))
        return {path_: (digest, size) for path_, digest, size in rows}
    except KeyError:
        raise EnvironmentUnusable(f"{path}: {name} is missing.", "Nothing vouches for its files.") from None
    except (ValueError, csv.Error) as error:
        raise EnvironmentUnusable(f"{path}: {name} is damaged.", str(error), "Download it again.") from None


def _vouched(data: bytes, digest: str, size: str, *, name: str, manifest: Manifest) -> bool:
    if name in {f"{_dist_info(manifest)}/{file}" for file in UNHASHED}:
        return True
    found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return digest == f"sha256={found}" and size == str(len(data))
