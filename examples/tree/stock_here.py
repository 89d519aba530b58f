"""Stock SGLang 0.5.20 as a repository, from the installation that `import sglang` finds: for hosts without a network.

    python examples/tree/stock_here.py STOCK [--site FOLDER]
    specpilot memory apply tree-core --stock STOCK --worktree TREE

Only files that the manifest lists are taken, so compiled extensions, caches and an installation without them do not
matter; each is compared with its blob id, and the repository's tree with stock's.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2])]

from specpilot_cli.core.errors import EnvironmentUnusable, SpecPilotError  # noqa: E402
from specpilot_cli.engine.sglang.manifest import ENGINE, Manifest, blob_id, require_stock, stock_manifest  # noqa: E402
from specpilot_cli.engine.stock import Stock, init_stock  # noqa: E402


def installed() -> Path:
    """The folder that `sglang` would be imported from (nothing of it is executed).

    Raises:
        EnvironmentUnusable: there is none.
    """
    found = importlib.util.find_spec("sglang")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentUnusable("SGLang is not installed here.", "", "Give the folder that holds it with --site.")
    return Path(found.submodule_search_locations[0]).parent


def stock_files(site: Path, manifest: Manifest) -> dict[str, bytes]:
    """The manifest's files below `site`, path to bytes.

    Raises:
        EnvironmentUnusable: one is missing or not stock's; the message names it.
    """
    files = {name: (site / name).read_bytes() for name in sorted(manifest.blobs) if (site / name).is_file()}
    require_stock({name: blob_id(data) for name, data in files.items()}, manifest, str(site))
    return files


def make(target: Path, site: Path, manifest: Manifest | None = None) -> Stock:
    """The stock repository at `target`, which must be absent or empty.

    Raises:
        UsageFault: `target` is taken. EnvironmentUnusable: see `stock_files`, or another tree came out.
    """
    manifest = manifest or stock_manifest()
    made = init_stock(target, ENGINE, stock_files(site, manifest))
    if made.tree != manifest.tree:
        raise EnvironmentUnusable(f"{target}: its tree is {made.tree}, stock is {manifest.tree}.")
    return made


def main() -> int:
    """Make it and say which tree it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stock", type=Path)
    parser.add_argument("--site", type=Path, help="folder that holds sglang/; default: where Python finds it")
    options = parser.parse_args()
    try:
        made = make(options.stock, options.site or installed())
    except SpecPilotError as error:
        print(error, file=sys.stderr)
        return int(error.exit_code)
    print(f"{made.path}: tree {made.tree}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
