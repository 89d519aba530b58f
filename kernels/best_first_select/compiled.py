"""Compiles the kernels for a GPU that need not be there (sm_90), at the benchmark's size: `python compiled.py`."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "_testing")
    from mount import mount

    mount()

import triton
from specpilot_kernels.best_first_select import kernel, triton_threshold
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
SIZES = {"D": 16, "K": 16, "N": 192}


def compile_pick(kind: str = "pair", target: GPUTarget = HOPPER) -> Any:
    """The `pick` kernel; kind is both, pair or unary."""
    constants = SIZES | {"WIDTH": 32, "HAS_UNARY": kind != "pair", "HAS_PAIR": kind != "unary", "MAY_END": False}
    signature = {"unary": "*fp32", "pair": "*fp32", "picked": "*i32", "scores": "*fp32"}
    return _compile(kernel.pick, signature, constants, 1, target)


def compile_lists(
    kind: str = "pair",
    target: GPUTarget = HOPPER,
    shape: triton_threshold.Shape = triton_threshold.DEFAULT,
    nodes: int = SIZES["N"],
) -> Any:
    """The `lists` kernel."""
    constants = SIZES | {
        "N": nodes,
        "WIDTH": 16,
        "POP_WIDTH": 32,
        "CHUNK": shape.chunk,
        "LISTED": shape.listed,
        "SORTED": triton_threshold.sorted_at_most(nodes),
        "WORDS": triton_threshold.WORK,
        "HAS_UNARY": kind != "pair",
        "HAS_PAIR": kind != "unary",
        "MAY_END": False,
    }
    signature = {"unary": "*fp32", "pair": "*fp32", "picked": "*i32", "scores": "*fp32", "work": "*i32"}
    return _compile(triton_threshold.lists, signature, constants, shape.warps, target)


def compile_link(target: GPUTarget = HOPPER) -> Any:
    """The `link` kernel."""
    constants = SIZES | {"COLUMNS": 256, "ROWS": 4}
    names = ("picked", "ids", "parents", "tokens", "depths", "next_token", "next_sibling")
    return _compile(kernel.link, dict.fromkeys(names, "*i32") | {"mask": "*i8"}, constants, 4, target)


def _compile(function: Any, signature: dict[str, str], constants: dict[str, Any], warps: int, target: GPUTarget) -> Any:
    types = signature | dict.fromkeys(constants, "constexpr")
    # as the launcher sees pointers of torch's allocator: multiples of 16 bytes
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(len(signature))}
    source = ASTSource(fn=function, signature=types, constexprs=constants, attrs=aligned)
    return triton.compile(source, target=target, options={"num_warps": warps})


def resources(compiled: Any) -> dict[str, int]:
    """Registers a thread, bytes of stack (spills) and of shared memory, and barriers in the machine code.

    By `cuobjdump` and `nvdisasm` of Triton's own package. Raises `FileNotFoundError` where they are not shipped.
    """
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])

        def told(*command: str) -> str:
            return subprocess.run([*command, str(cubin)], check=True, capture_output=True, text=True).stdout

        usage = told(str(tools / "cuobjdump"), "--dump-resource-usage")
        code = told(str(tools / "cuobjdump"), "--dump-sass")
    found = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", usage)}
    return {
        "registers": found["REG"],
        "stack_bytes": found["STACK"] + found["LOCAL"],
        "shared_bytes": compiled.metadata.shared,
        "barriers": len(re.findall(r"\bBAR\.SYNC", code)),
        "instructions": len(re.findall(r"^\s+/\*[0-9a-f]{4,}\*/", code, re.MULTILINE)),
    }


def main() -> None:
    """Print what each kernel takes."""
    for warps, chunk in ((1, 512), (2, 512), (4, 256), (4, 512), (4, 1024), (8, 512), (8, 1024), (8, 2048)):
        print(
            f"lists, {warps} warps, chunk {chunk}:",
            resources(compile_lists(shape=triton_threshold.Shape(warps, chunk))),
        )
    print("pick:", resources(compile_pick()))
    print("link:", resources(compile_link()))


if __name__ == "__main__":
    main()
