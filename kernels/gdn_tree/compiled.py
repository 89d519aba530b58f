"""Compiles the kernels for a GPU that need not be there (sm_90), at the benchmark's size.

python compiled.py           # what each takes
python compiled.py orders    # numbers of a key whose squares a thread of `path` sums first, as neighbours
"""

import re
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from cubin import compile_for, resources
from specpilot_kernels.gdn_tree import triton_path, triton_wy

__all__ = ["NAMES", "build", "resources"]

NAMES = ("verify path", "verify wy", "commit path", "commit wy")
SIZES = {"H": 16, "HV": 48, "K": 128, "V": 128}
TYPES = dict.fromkeys(("q", "k", "v", "a", "b", "dt_bias", "out"), "*bf16")
TYPES |= {"a_log": "*fp32", "state": "*fp32", "slots": "*i32", "tree": "*i64", "path": "*i64", "lengths": "*i32"}
TYPES |= {f"{name}_{what}": "i32" for name in ("q", "k", "v", "a", "b") for what in ("request", "row")}
TYPES |= {"state_slot": "i32", "scale": "fp32", "n": "i32", "d": "i32", "depth": "i32"}


def build(name: str, rows: int = 32, tile: triton_wy.Tile | None = None, even_rows: bool = True) -> Any:
    """One of NAMES for `rows` rows (16 steps of a commit), with the tile that is used there unless one is given.

    even_rows: whether rows lie at multiples of 16 elements, as the engine's do.
    """
    what, variant = name.split()
    module = {"path": triton_path, "wy": triton_wy}[variant]
    function = {"verify": module._verify, "commit": module._commit}[what]
    if tile is None:
        chosen = triton_wy.VERIFY_TILE if what == "verify" else triton_wy.COMMIT_TILE
        tile = chosen if variant == "wy" else triton_wy.Tile(triton_path.COLUMNS, 1)
    constants: dict[str, Any] = {**SIZES, "BV": tile.columns, "N": rows if what == "verify" else 16}
    constants |= {"PIECES": True, "PRECISION": "tf32x3"}
    wanted = {key: value for key, value in constants.items() if key in function.arg_names}
    types = {key: value for key, value in TYPES.items() if key in function.arg_names}
    even = [key for key in types if key.endswith(("_row", "_request", "_slot") if even_rows else "_slot")]
    return compile_for(function, types, wanted, tile.warps, even=even)


def neighbours(even_rows: bool) -> int:
    """Neighbouring numbers of a key that a thread of the `path` commit has.

    `tl.sum` of a whole row may take the numbers in any order (`allow_reorder`) and takes them as they were loaded: four
    at once where rows are known to lie at multiples of 16 elements, else single ones 32 apart.
    """
    code = build("commit path", even_rows=even_rows).asm["ttgir"]
    (source,) = re.findall(r"tt\.reshape .* allow_reorder : tensor<128xf32, #(\w+)>", code)
    (layout,) = re.findall(rf"#{source} = #ttg.blocked<{{sizePerThread = \[(\d+)\]", code)
    return int(layout)


def main() -> None:
    """Print what each kernel takes, or orders."""
    if sys.argv[1:] == ["orders"]:
        print("even rows:", neighbours(True), "odd rows:", neighbours(False))
        return
    for name in NAMES:
        for rows in (16, 32, 64) if name == "verify wy" else (32,):
            print(f"{name}, {rows} rows:", resources(build(name, rows)))


if __name__ == "__main__":
    main()
