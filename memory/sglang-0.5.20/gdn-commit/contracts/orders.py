"""Verification with and without states, and the commit, compiled for sm_90: one arithmetic, one order of a key's sum.

No GPU is needed; the interpreter must be off. Prints, for each kernel, the neighbouring numbers of a key that a thread
sums first (`tl.sum` of a whole key takes them as they were loaded), and whether its arithmetic is stock's kernel's.
"""

import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[3] / "kernels" / "_testing")]
import rooms  # noqa: E402
from cubin import compile_for  # noqa: E402

rooms.rooms()
VERIFY = import_module("sglang.kernels.ops.attention.fla.fused_sigmoid_gating_recurrent")
HEADS: dict[str, Any] = {"H": 16, "HV": 48, "K": 128, "V": 128, "BV": 32}
STRIDES = ("stride_h0_source", "stride_a", "stride_q", "stride_k", "stride_v", "stride_b")
ARITHMETIC = re.compile(r"\b((?:fma|mul|add|sub|div|sqrt|ex2|lg2|neg|abs)\.[a-z.]*f32[a-z0-9.]*|shfl\.\S+)")


def verify(states: bool) -> Any:
    """Stock's launch of a verify pass, or the entry's."""
    kernel = VERIFY.fused_sigmoid_gating_delta_rule_update_kernel
    types = dict.fromkeys(("q", "k", "v", "a", "b", "o", "dt_bias"), "*bf16")
    types |= {"A_log": "*fp32", "h0_source": "*fp32", "h0_indices": "*i32", "cu_seqlens": "*i32"}
    types |= dict.fromkeys(("softplus_beta", "softplus_threshold", "lower_bound", "scale"), "fp32")
    types |= dict.fromkeys((*STRIDES, "cache_steps", "T"), "i32")
    if states:
        types |= {"intermediate_states_buffer": "*fp32", "intermediate_state_indices": "*i32"}
    else:
        types |= {"kept_a": "*bf16", "kept_b": "*bf16"}
    given = {name: None for name in kernel.arg_names if name not in types}
    given |= {name: 0 for name in given if name.startswith("stride_") or name == "MAX_CACHE_LEN"}
    given |= {name: False for name in given if name.startswith(("IS_", "HAS_", "CACHE_", "USE_LOWER"))}
    given |= HEADS | {"NP2_T": 8, "B": 1, "BK": 128, "IS_VARLEN": True, "SPLIT_N_HV_GRID": True, "USE_GDC": True}
    given |= {"USE_INITIAL_STATE": True, "USE_QK_L2NORM_IN_KERNEL": True, "DISABLE_STATE_UPDATE": True}
    given |= {"CACHE_INTERMEDIATE_STATES": states, "KEEP_GATES": not states}
    return compile_for(kernel, types, given, 1, even=STRIDES)


def commit() -> Any:
    """The entry's commit of the same heads."""
    kernel = rooms.part("triton_commit").gdn_commit_kernel
    types = dict.fromkeys(("mixed", "a", "b", "dt_bias"), "*bf16") | dict.fromkeys(("a_log", "state"), "*fp32")
    types |= {"slots": "*i32", "lengths": "*i32", "path": "*i64"}
    strides = ("mixed_layer", "gate_layer", "state_layer", "state_slot")
    types |= dict.fromkeys((*strides, "rows", "depth"), "i32")
    given = HEADS | {"KEYS_AT": 2048, "VALUES_AT": 4096, "MIXED": 10240}
    return compile_for(kernel, types, given, 1, even=strides)


def neighbours(compiled: Any) -> set[int]:
    """Numbers of a key that a thread has side by side where it sums squares."""
    code = compiled.asm["ttgir"]
    found = set()
    for source in re.findall(r"tt\.reshape .* allow_reorder : tensor<128xf32, #(\w+)>", code):
        layout = re.search(rf"#{source} = #ttg.blocked<{{sizePerThread = \[(\d+)\]", code)
        assert layout is not None
        found.add(int(layout[1]))
    return found


def main() -> None:
    kernels = {"stock": verify(True), "without states": verify(False), "commit": commit()}
    used = {name: Counter(ARITHMETIC.findall(kernel.asm["ptx"])) for name, kernel in kernels.items()}
    for name, kernel in kernels.items():
        same = used[name] == used["stock"] if name != "commit" else not used[name] - used["stock"]
        print(f"{name}: {sorted(neighbours(kernel))} {same}")


if __name__ == "__main__":
    main()
