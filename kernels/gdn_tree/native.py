"""The CUDA C++ variant (`gdn_tree.cu`): verification of a layer, and one commit for all layers.

Compiled by nvcc, once per source digest, GPU and key width, into the user's cache, or taken from
`SPECPILOT_GDN_TREE_SO` (which then serves every width: it must have been compiled for the one in use).
Tensors on a CPU go to the same source compiled by the host's compiler (`emulate.hpp`): slow, and only for tests.
"""

import ctypes
import os
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from specpilot_kernels._testing import built
from specpilot_kernels.gdn_tree.reference import Inputs

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("gdn_tree.cu", "commit.cuh", "verify.cuh", "device.cuh", "emulate.hpp")
)
MORE_SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("gdn_blocks.cu", "gdn_read.cu", "blocks.cuh", "read.cuh", "async.cuh")
)
"""Of verification by `read.cuh` and `blocks.cuh`, beside `SOURCES`."""
SHAPES = {32: 1, 64: 1, 1032: 1, 1064: 1, 3016: 3}
"""Blocks of `blocks.cuh`, by columns, and of `read.cuh`, by value heads times 1000 plus columns of each; and what must
divide the value heads of a key head."""
WIDTHS = (16, 32, 64, 128)
HOST_FLAGS = ("-O2", "-std=c++20", "-march=native", "-ffp-contract=off", "-shared", "-fPIC", "-x", "c++")
HOST = "host"
Phases = dict[str, tuple[int, int]]
PHASES: dict[str, Phases] = {
    "verify": {
        "rows, gates, first state": (0, 1),
        "products": (1, 2),
        "coupling": (2, 3),
        "solve": (3, 4),
        "output": (4, 5),
    },
    "blocks": {
        "rows, gates, first state": (0, 1),
        "products": (1, 2),
        "pairs": (2, 3),
        "inverses, right": (3, 4),
        "solve, output": (4, 5),
    },
    "commit": {"first state, rows": (0, 1), "steps": (1, 2), "store": (2, 3)},
    "read": {
        "rows, gates": (0, 1),
        "lengths, state": (1, 2),
        "state products": (2, 3),
        "W awaited": (3, 4),
        "output": (4, 5),
    }
    | {"pair products": (1, 6), "pairs": (6, 7), "solve": (7, 8), "block, ns": (9, 10)},
}
"""Between which marks they lie in a build that reads the clock."""
MARKS = {"verify": 6, "blocks": 6, "commit": 4, "read": 11}


class Source(ctypes.Structure):
    """`device.cuh`: a pointer, and strides in elements."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("layer", "request", "row")))


POINTERS = ("slots", "tree", "out", "path", "lengths", "clocks")
NUMBERS = ("layers", "requests", "rows", "depth", "heads", "value_heads", "width", "height")


class Problem(ctypes.Structure):
    """`device.cuh`, field by field."""

    _fields_ = (
        *((name, Source) for name in ("q", "k", "v", "a", "b")),
        *((name, ctypes.c_void_p) for name in ("a_log", "dt_bias", "state")),
        *((name, ctypes.c_int64) for name in ("state_layer", "state_slot")),
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int32) for name in (*NUMBERS, "bias_is_float", "ahead")),
        *((name, ctypes.c_float) for name in ("scale", "keys_per_value")),
    )


def name_of(shape: int | None) -> str:
    """Of a kernel for verification, for people: of `verify.cuh`, `read.cuh` or `blocks.cuh`."""
    return "verify" if shape is None else f"read {shape}" if shape > 1000 else f"blocks {shape}"


def command(arch: str, width: int, clocks: bool = False, more: bool = False) -> list[str]:
    """The compiler's, without its output; arch such as "90a", or `HOST`.

    clocks: the build that reads the clock. more: the one that also has `gdn_tree_read` and `gdn_tree_blocks`.
    """
    unit = str((MORE_SOURCES if more else SOURCES)[0])
    defines = (f"-DGDN_TREE_WIDTH={width}", *(("-DGDN_TREE_CLOCKS",) if clocks else ()))
    if arch == HOST:
        return [os.environ.get("CXX", "g++"), *HOST_FLAGS, *defines, unit]
    return [built.nvcc(), *built.target(arch), *defines, unit]


def shared_object(arch: str, width: int, clocks: bool = False, more: bool = False) -> Path:
    """Path of the library that `command` makes. Raises `built.BuildError`."""
    ready = os.environ.get("SPECPILOT_GDN_TREE_SO")
    if ready and arch != HOST and not clocks and not more:
        return Path(ready)
    sources = (*MORE_SOURCES, *SOURCES) if more else SOURCES
    return built.shared_object("gdn_more" if more else "gdn_tree", command(arch, width, clocks, more), sources)


@cache
def functions(arch: str, width: int, clocks: bool = False, more: bool = False) -> ctypes.CDLL:
    """The loaded calls. Raises `built.BuildError`."""
    loaded = ctypes.CDLL(str(shared_object(arch, width, clocks, more)))
    for name in ("gdn_tree_read", "gdn_tree_blocks") if more else ():
        getattr(loaded, name).argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p]
        getattr(loaded, name).restype = ctypes.c_int
    loaded.gdn_tree_verify.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    loaded.gdn_tree_commit.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    loaded.gdn_tree_verify.restype = loaded.gdn_tree_commit.restype = ctypes.c_int
    return loaded


@cache
def arch_of(device: torch.device) -> str:
    """The target of `command` for a device."""
    if device.type == "cpu":
        return HOST
    major, minor = torch.cuda.get_device_capability(device)
    return f"{major}{minor}{'a' if major >= 9 else ''}"


def can_run(device: torch.device, width: int) -> bool:
    """Whether a library for keys of `width` exists for the device, or a compiler for one. It needs sm_90 or later."""
    if width not in WIDTHS:
        return False
    if device.type != "cpu":
        if torch.cuda.get_device_capability(device) < (9, 0):
            return False
        if "SPECPILOT_GDN_TREE_SO" in os.environ:
            return True
    return shutil.which(command(arch_of(device), width)[0]) is not None


def _aligned(x: Inputs) -> Inputs:
    """Rows of q, k and v at multiples of 16 bytes: views where they are, copies where they are not."""

    def fits(tensor: torch.Tensor) -> bool:
        return tensor.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in tensor.stride()[:3])

    def aligned(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if fits(tensor) else tensor.clone(memory_format=torch.contiguous_format)

    return replace(x, q=aligned(x.q), k=aligned(x.k), v=aligned(x.v))


def _source(name: str, tensor: torch.Tensor) -> Source:
    if tensor.dtype != torch.bfloat16:
        raise ValueError(f"{name} is {tensor.dtype}, the cuda variant takes bfloat16")
    if tensor.stride()[3:] != torch.empty(tensor.shape[3:], device="meta").stride():
        raise ValueError(f"{name}: heads and columns of a row must lie densely, strides are {tensor.stride()}")
    return Source(tensor.data_ptr(), *tensor.stride()[:3])


def _problem(x: Inputs, state: torch.Tensor) -> Problem:
    """What all layers' inputs, `[L, ...]` each, say."""
    layers, requests, rows, heads, width = x.k.shape
    value_heads, height = x.v.shape[3:]
    if x.a_log.dtype != torch.float32 or x.dt_bias.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"a_log is {x.a_log.dtype} and dt_bias {x.dt_bias.dtype}; float32, and float32 or bfloat16")
    if not (x.a_log.is_contiguous() and x.dt_bias.is_contiguous()):
        raise ValueError("a_log and dt_bias must be contiguous")
    if state.data_ptr() % 16 or state.stride(0) % 4 or state.stride(1) % 4:
        raise ValueError(f"every slot must start at a multiple of 16 bytes, strides are {state.stride()}")
    found = Problem(a_log=x.a_log.data_ptr(), dt_bias=x.dt_bias.data_ptr(), state=state.data_ptr())
    for name in ("q", "k", "v", "a", "b"):
        setattr(found, name, _source(name, getattr(x, name)))
    found.state_layer, found.state_slot = state.stride()[:2]
    for name, number in zip(NUMBERS, (layers, requests, rows, 0, heads, value_heads, width, height), strict=True):
        setattr(found, name, number)
    found.bias_is_float = x.dt_bias.dtype == torch.float32
    found.keys_per_value = heads / value_heads
    return found


def _calls(problem: Problem, device: torch.device, clocks: torch.Tensor | None, more: bool = False) -> ctypes.CDLL:
    if clocks is not None:
        problem.clocks = clocks.data_ptr()
    return functions(arch_of(device), problem.width, clocks is not None, more)


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _launched(what: str, failed: int, problem: Problem) -> None:
    if failed:
        sizes = {name: getattr(problem, name) for name in NUMBERS}
        raise RuntimeError(f"gdn_tree {what}: error {failed} for {sizes}")


def verify(
    x: Inputs,
    state: torch.Tensor,
    slots: torch.Tensor,
    tree: torch.Tensor,
    scale: float,
    out: torch.Tensor | None = None,
    clocks: torch.Tensor | None = None,
    shape: int | None = None,
    early: bool = False,
) -> torch.Tensor:
    """See `op.verify`; into `out` where it is given, contiguous.

    Args:
        clocks: `[blocks, marks]` int64, written by the build that reads the clock: cycles around `PHASES`.
        shape: one of `SHAPES`: the kernel of `read.cuh` or `blocks.cuh` with such blocks; None: that of `verify.cuh`.
        early: with a shape: it may start while the kernel in front, which must not write states, still runs.

    Raises:
        built.BuildError: no library.
        ValueError: types or strides that it does not take.
        RuntimeError: the device refused the launch.
    """
    x = _aligned(Inputs(*(getattr(x, name)[None] for name in x.__dataclass_fields__)))
    problem = _problem(x, state[None])
    if out is None:
        out = torch.empty(x.v.shape[1:], dtype=x.v.dtype, device=x.v.device)
    slots, tree = slots.int().contiguous(), tree.long().contiguous()
    problem.slots, problem.tree, problem.out, problem.scale = slots.data_ptr(), tree.data_ptr(), out.data_ptr(), scale
    calls, device = _calls(problem, state.device, clocks, shape is not None), state.device
    if shape is None:
        _launched("verify", calls.gdn_tree_verify(ctypes.byref(problem), _stream(device)), problem)
    else:
        call = calls.gdn_tree_read if shape > 1000 else calls.gdn_tree_blocks
        failed = call(ctypes.byref(problem), shape, int(early), _stream(device))
        _launched(f"verify, shape {shape}", failed, problem)
    return out


def commit_layers(
    x: Inputs,
    state: torch.Tensor,
    slots: torch.Tensor,
    path: torch.Tensor,
    lengths: torch.Tensor,
    ahead: bool = True,
    clocks: torch.Tensor | None = None,
) -> None:
    """See `op.commit_layers`; raises as `verify` does. ahead: blocks fetch the state of later ones into the cache."""
    x = _aligned(x)
    problem = _problem(x, state)
    slots, path, lengths = slots.int().contiguous(), path.long().contiguous(), lengths.int().contiguous()
    problem.slots, problem.path, problem.lengths = slots.data_ptr(), path.data_ptr(), lengths.data_ptr()
    problem.depth = path.shape[1]
    calls, device = _calls(problem, state.device, clocks), state.device
    _launched("commit", calls.gdn_tree_commit(ctypes.byref(problem), int(ahead), _stream(device)), problem)


def commit(x: Inputs, state: torch.Tensor, slots: torch.Tensor, path: torch.Tensor, lengths: torch.Tensor) -> None:
    """See `op.commit`."""
    one = Inputs(*(getattr(x, name)[None] for name in x.__dataclass_fields__))
    commit_layers(one, state[None], slots, path, lengths)
