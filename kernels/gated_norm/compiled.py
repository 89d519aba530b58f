"""Ours and stock's kernel for a GPU that need not be there (sm_90): `python compiled.py SOURCE` (wheel or folder)."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import triton

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "_testing"))
from cubin import compile_for, resources
from mount import mount

sys.path.pop(0)
mount()
from specpilot_kernels.gated_norm import kernel, stock  # noqa: E402

__all__ = ["arithmetic", "machine_arithmetic", "ours", "places", "recurrence", "reduction", "resources", "theirs"]

STRIDES = ("stride_x", "stride_z", "stride_y")
# what decides a result's bits; moves, selections, integers, predicates and loads do not
FLOATING = re.compile(r"^\s*(?:@%p\d+ )?((?!selp)[a-z0-9.]+\.f32[a-z0-9.]*|shfl\.sync\.bfly\.b32)")
MACHINE = re.compile(
    r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?((?:FADD|FMUL|FFMA|MUFU|SHFL\.BFLY|F2F|FMNMX)[.A-Z0-9]*)", re.MULTILINE
)


def ours(rows: int, sigmoid: bool = False, width: int = 128, pdl: bool = True) -> Any:
    """Our kernel with `rows` rows a program, BF16."""
    types = dict.fromkeys(("X", "Z", "W", "Y"), "*bf16") | dict.fromkeys((*STRIDES, "M"), "i32") | {"eps": "fp32"}
    constants = {"N": width, "ROWS": rows, "SIGMOID": sigmoid, "USE_GDC": pdl}
    return compile_for(kernel.gated_rms_norm_kernel, types, constants, 1, even=(*STRIDES, "M"))


def theirs(source: Path, rows: int, sigmoid: bool = False, width: int = 128, pdl: bool = True) -> Any:
    """Stock's kernel as `_layer_norm_fwd` specialises it for the same call."""
    strides = ("stride_x_row", "stride_y_row", "stride_z_row", "stride_z_token", "stride_z_head")
    types = dict.fromkeys(("X", "Y", "W", "Z"), "*bf16") | {"Rstd": "*fp32", "eps": "fp32"}
    types |= dict.fromkeys((*strides, "M"), "i32")
    constants: dict[str, Any] = {"B": None, "Mean": None, "N": width, "BLOCK_N": width, "ROWS_PER_BLOCK": rows}
    constants |= {"HAS_BIAS": False, "HAS_Z": True, "Z_IS_3D": False, "Z_HEADS": 1, "NORM_BEFORE_GATE": True}
    constants |= {"IS_RMS_NORM": True, "ACTIVATION": "sigmoid" if sigmoid else "swish", "USE_GDC": pdl}
    return compile_for(stock.norm_kernel(source), types, constants, 1, even=(*strides, "M"))


def recurrence(source: Path, columns: int) -> Any:
    """Stock's recurrence as a chain calls it (16 and 48 heads of 128), with a tile of `columns` columns."""
    function = stock.recurrence(source, columns).__globals__["fused_sigmoid_gating_delta_rule_update_kernel"]
    types = dict.fromkeys(("a", "b", "q", "k", "v", "o", "dt_bias"), "*bf16")
    types |= dict.fromkeys(("A_log", "h0_source", "intermediate_states_buffer"), "*fp32")
    types |= dict.fromkeys(("h0_indices", "cu_seqlens", "intermediate_state_indices"), "*i32")
    types |= dict.fromkeys(("softplus_beta", "softplus_threshold", "lower_bound", "scale"), "fp32")
    strides = [f"stride_{name}" for name in ("h0_source", "a", "q", "k", "v", "b")]
    types |= dict.fromkeys((*strides, "T", "cache_steps"), "i32")
    zero = [
        name
        for name in function.arg_names
        if name.startswith(("stride_retrieve", "stride_raw", "stride_g_", "stride_beta"))
    ]
    none = [name for name in function.arg_names if name.startswith(("replayssm", "retrieve"))]
    constants: dict[str, Any] = dict.fromkeys(zero, 0) | dict.fromkeys(none)
    constants |= {
        "NP2_T": 8,
        "B": 1,
        "H": 16,
        "HV": 48,
        "K": 128,
        "V": 128,
        "BK": 128,
        "BV": columns,
        "MAX_CACHE_LEN": 0,
    }
    yes = (
        "USE_INITIAL_STATE",
        "USE_QK_L2NORM_IN_KERNEL",
        "IS_VARLEN",
        "DISABLE_STATE_UPDATE",
        "CACHE_INTERMEDIATE_STATES",
    )
    no = ("IS_KDA", "USE_LOWER_BOUND", "HAS_EAGLE_TREE_CUSTOM_ATTN_MASK", "CACHE_RING")
    constants |= dict.fromkeys((*yes, "SPLIT_N_HV_GRID", "USE_GDC"), True) | dict.fromkeys(no, False)
    return compile_for(function, types, constants, 1, even=strides)


def arithmetic(compiled: Any) -> Counter[str]:
    """How often every floating point instruction and shuffle stands in the PTX."""
    lines = compiled.asm["ptx"].splitlines()
    return Counter(match.group(1) for line in lines if (match := FLOATING.match(line)))


def machine_arithmetic(compiled: Any) -> Counter[str]:
    """The same in the machine code: here products and sums have been contracted."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        words = [str(tool), "--dump-sass", str(cubin)]
        code = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    return Counter(MACHINE.findall(code))


def reduction(compiled: Any) -> list[str]:
    """Layouts of every reduced tensor, in order: which lane holds what decides the order of a sum."""
    text = compiled.asm["ttgir"]
    layouts = dict(re.findall(r"^(#\w+) = (#ttg\.\w+<.*>)$", text, re.MULTILINE))
    found = re.findall(r"^\s*\}\) : \(tensor<(\S+), (#\w+)>\)", text, re.MULTILINE)
    return [f"{shape} {layouts[name]}" for shape, name in found]


def places(compiled: Any) -> str:
    """The order of memory accesses, waits and shuffles in the PTX: L load, S store, W wait, R shuffle, D dependents."""
    letters = (
        ("ld.global", "L"),
        ("st.global", "S"),
        ("griddepcontrol.wait", "W"),
        ("shfl", "R"),
        ("launch_dependents", "D"),
    )
    lines = compiled.asm["ptx"].splitlines()
    return "".join(letter for line in lines for word, letter in letters if word in line)


def main() -> None:
    """Print what each kernel takes, and whether its arithmetic is stock's."""
    source = Path(sys.argv[1]) if len(sys.argv) > 1 else stock.installed()
    for rows in (1, 2, 4):
        mine, other = ours(rows), theirs(source, rows)
        same = (arithmetic(mine), machine_arithmetic(mine), reduction(mine)) == (
            arithmetic(other),
            machine_arithmetic(other),
            reduction(other),
        )
        print(f"{rows} rows a program: the same arithmetic {same}; sums over {reduction(mine)}")
        print("  ours ", places(mine), resources(mine))
        print("  stock", places(other), resources(other))
    for columns in (32, 16, 8, 4):
        print(f"stock's recurrence, {columns} columns:", resources(recurrence(source, columns)))


if __name__ == "__main__":
    main()
