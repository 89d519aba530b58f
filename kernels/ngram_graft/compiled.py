"""Compiles the kernels for a GPU that need not be there (sm_90): `python compiled.py` says what each takes."""

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from cubin import HOPPER, compile_for, resources
from specpilot_kernels.ngram_graft import graft, record, reference
from triton.backends.compiler import GPUTarget

__all__ = ["compile_graft", "compile_record", "compile_search", "resources"]

TEXT = {"history": "*i32", "slots": "*i64", "prefix_lens": "*i64", "anchors": "*i64", "width": "i32", "pitch": "i32"}
SIZES = ((32, 8), (63, 15), (255, 63))
"""Nodes and tokens of the chain: 33, 64 and 256 rows."""


def compile_search(stripes: int = 16, target: GPUTarget = HOPPER) -> Any:
    """The `search_kernel`, for texts whose rows begin at multiples of 16 tokens."""
    found = {"LEAST": reference.LEAST, "MOST": reference.MOST, "PLACE_BITS": graft.PLACE_BITS}
    constants = {"STRIPES": stripes, "BLOCK": graft.BLOCK} | found
    types = {"found": "*i32"} | TEXT
    return compile_for(graft.search_kernel, types, constants, graft.SEARCH_WARPS, target, even=("width", "pitch"))


def compile_graft(nodes: int, length: int, stripes: int = 16, target: GPUTarget = HOPPER) -> Any:
    """The `graft_kernel`, as `graft.launch` asks for it."""
    columns = graft.power_of_2(nodes + 1)
    constants = {
        "STRIPES": stripes,
        "STRIPES_POWER": graft.power_of_2(stripes),
        "N": nodes,
        "LENGTH": length,
        "LENGTH_POWER": graft.power_of_2(length),
        "COLUMNS": columns,
        "ROWS": min(graft.ROWS, columns),
        "PLACE_BITS": graft.PLACE_BITS,
    }
    words = ("found", "parents", "tokens", "depths", "next_token", "next_sibling")
    types = dict.fromkeys(words, "*i32") | {"scores": "*fp32", "mask": "*i8"} | TEXT
    return compile_for(graft.graft_kernel, types, constants, graft.warps_of(nodes), target, even=("width", "pitch"))


def compile_record(tokens: int = 9, target: GPUTarget = HOPPER) -> Any:
    """The `record_kernel` for up to so many tokens a step."""
    constants = {"P": tokens, "POWER": record.power_of_2(tokens + 1)}
    types = TEXT | {"new_lens": "*i64", "tokens": "*i64", "counts": "*i32"}
    return compile_for(record.record_kernel, types, constants, 1, target, even=("width", "pitch"))


def main() -> None:
    """Print what each kernel takes."""
    print("record:", resources(compile_record()))
    print("search:", resources(compile_search()))
    for nodes, length in SIZES:
        print(f"graft, {nodes} nodes, {length} of the chain:", resources(compile_graft(nodes, length)))


if __name__ == "__main__":
    main()
