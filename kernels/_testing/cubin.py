"""Compile a Triton kernel for a GPU that need not be there, and say what it takes of a multiprocessor."""

import re
import subprocess
from collections.abc import Collection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)


def compile_for(
    function: Any,
    signature: dict[str, str],
    constants: dict[str, Any],
    warps: int,
    target: GPUTarget = HOPPER,
    even: Collection[str] = (),
) -> Any:
    """`function` as the launcher would build it.

    Args:
        signature: Triton's type of every argument that is no constant, in the kernel's order.
        constants: values of the `constexpr` arguments.
        even: integer arguments that are multiples of 16.
    """
    types = {name: signature.get(name, "constexpr") for name in function.arg_names}
    # as the launcher sees pointers of torch's allocator, and strides of rows: multiples of 16
    wide = [place for place, name in enumerate(function.arg_names) if types[name].startswith("*") or name in even]
    aligned = {(place,): [["tt.divisibility", 16]] for place in wide}
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
