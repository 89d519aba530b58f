"""Compiles the kernels for a GPU that need not be there (sm_90), at the benchmark's size: `python compiled.py`."""

import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

from cubin import HOPPER, compile_for, resources
from specpilot_kernels.best_first_select import kernel, triton_select
from triton.backends.compiler import GPUTarget

__all__ = ["compile_choose", "compile_link", "compile_pick", "resources"]

SIZES = {"D": 16, "K": 16, "N": 192}


def compile_pick(kind: str = "pair", target: GPUTarget = HOPPER) -> Any:
    """The `pick` kernel; kind is both, pair or unary."""
    constants = SIZES | {"WIDTH": 32, "HAS_UNARY": kind != "pair", "HAS_PAIR": kind != "unary", "MAY_END": False}
    signature = {"unary": "*fp32", "pair": "*fp32", "picked": "*i32", "scores": "*fp32"}
    return compile_for(kernel.pick, signature, constants, 1, target)


def compile_choose(
    kind: str = "pair",
    target: GPUTarget = HOPPER,
    shape: triton_select.Shape = triton_select.DEFAULT,
    nodes: int = SIZES["N"],
    profile: bool = False,
) -> Any:
    """The `choose` kernel."""
    edges = triton_select.cached_edges(SIZES["D"], SIZES["K"], kind != "unary") if shape.cached else 0
    constants = SIZES | {
        "N": nodes,
        "WIDTH": 16,
        "POP_WIDTH": 32,
        "CHUNK": shape.chunk,
        "LISTED": shape.listed,
        "SORTED": triton_select.sorted_at_most(nodes, shape.warps),
        "SIZE": triton_select.WORDS + edges,
        "EDGE_COUNT": edges,
        "HAS_UNARY": kind != "pair",
        "HAS_PAIR": kind != "unary",
        "MAY_END": False,
        "NATIVE": True,
        "WARPS": shape.warps,
        "EARLY": shape.early,
        "PROFILE": profile,
    }
    signature = {"unary": "*fp32", "pair": "*fp32", "picked": "*i32", "scores": "*fp32", "work": "*i32"}
    return compile_for(triton_select.choose, signature | {"clocks": "*i64"}, constants, shape.warps, target)


def compile_link(target: GPUTarget = HOPPER, waits: bool = False) -> Any:
    """The `link` kernel."""
    constants = SIZES | {"COLUMNS": 256, "ROWS": 4, "WAITS": waits}
    names = ("picked", "ids", "parents", "tokens", "depths", "next_token", "next_sibling")
    return compile_for(kernel.link, dict.fromkeys(names, "*i32") | {"mask": "*i8"}, constants, 4, target)


def main() -> None:
    """Print what each kernel takes."""
    for warps, chunk in ((1, 256), (2, 512), (4, 512), (4, 1024), (8, 1024)):
        print(
            f"choose, {warps} warps, chunk {chunk}:", resources(compile_choose(shape=triton_select.Shape(warps, chunk)))
        )
    print("pick:", resources(compile_pick()))
    print("link:", resources(compile_link()), "waiting:", resources(compile_link(waits=True)))


if __name__ == "__main__":
    main()
