"""Compiles the kernels for a GPU that need not be there (sm_90), at the benchmark's size."""

from typing import Any

import triton
from specpilot_kernels.best_first_select import kernel
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = {"D": 16, "K": 16, "N": 192}


def compile_pick(kind: str = "pair", target: GPUTarget = HOPPER) -> Any:
    """The `pick` kernel; kind is both, pair or unary."""
    constants = SIZES | {"WIDTH": 32, "HAS_UNARY": kind != "pair", "HAS_PAIR": kind != "unary", "MAY_END": False}
    signature = {"unary": "*fp32", "pair": "*fp32", "picked": "*i32", "scores": "*fp32"}
    return _compile(kernel.pick, signature, constants, 1, target)


def compile_link(target: GPUTarget = HOPPER) -> Any:
    """The `link` kernel."""
    constants = SIZES | {"COLUMNS": 256, "ROWS": 4}
    names = ("picked", "ids", "parents", "tokens", "depths", "next_token", "next_sibling")
    return _compile(kernel.link, dict.fromkeys(names, "*i32") | {"mask": "*i8"}, constants, 4, target)


def _compile(function: Any, signature: dict[str, str], constants: dict[str, Any], warps: int, target: GPUTarget) -> Any:
    types = signature | dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=function, signature=types, constexprs=constants)
    return triton.compile(source, target=target, options={"num_warps": warps})
