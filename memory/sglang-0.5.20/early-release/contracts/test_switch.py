"""Off, every call is stock's; on, the three kernels release first and few rows get the norm here.

The tree's own functions with recorders behind them: the engine is not imported.
"""

import ast
import importlib.util
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

TREE = Path.cwd()
OPS = TREE / "sglang/kernels/ops"


def switched(monkeypatch: pytest.MonkeyPatch, rows: str | None) -> ModuleType:
    """The tree's `early_release.py` as a process with that environment loads it."""
    monkeypatch.delenv("SGLANG_EARLY_RELEASE", raising=False)
    if rows is not None:
        monkeypatch.setenv("SGLANG_EARLY_RELEASE", rows)
    spec = importlib.util.spec_from_file_location("early_release_of_the_tree", OPS / "early_release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def functions(path: Path, names: tuple[str, ...], scope: dict[str, Any], inside: str | None = None) -> dict[str, Any]:
    """`scope` with functions of a file of the tree, of the class `inside` or of none, without their decorators."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    body = tree.body
    if inside:
        body = next(node for node in body if isinstance(node, ast.ClassDef) and node.name == inside).body
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name in names]
    assert len(found) == len(names)
    for node in found:
        node.decorator_list, node.returns = [], None
        for argument in (*node.args.args, *node.args.kwonlyargs):
            argument.annotation = None
    tree.body = list(found)
    exec(compile(tree, path.name, "exec"), scope)
    return scope


class OnCuda:
    """A tensor as the rule sees it: of a GPU, without one."""

    def __init__(self, *shape: int, dtype: Any = torch.bfloat16, address: int = 256, dense: bool = True) -> None:
        self.shape, self.dtype, self.is_cuda = torch.Size(shape), dtype, True
        self.dim, self.data_ptr, self.is_contiguous = (lambda: len(shape)), (lambda: address), (lambda: dense)


def test_it_is_off_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for rows, on in ((None, False), ("0", False), ("1", True), ("256", True)):
        assert switched(monkeypatch, rows).on() is on
    with pytest.raises(ValueError, match="count of rows"):
        switched(monkeypatch, "-1")


def test_which_norms_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    on, off = switched(monkeypatch, "32"), switched(monkeypatch, None)
    good = (OnCuda(32, 4096), OnCuda(32, 4096), OnCuda(4096))
    assert on.takes(*good) and not off.takes(*good)
    for bad in (
        (OnCuda(33, 4096), OnCuda(33, 4096), good[2]),
        (OnCuda(0, 4096), OnCuda(0, 4096), good[2]),
        (OnCuda(1, 32, 4096), OnCuda(1, 32, 4096), good[2]),
        (good[0], OnCuda(31, 4096), good[2]),
        (good[0], good[1], OnCuda(4088)),
        (OnCuda(32, 4096, dtype=torch.float16), good[1], good[2]),
        (good[0], OnCuda(32, 4096, dense=False), good[2]),
        (good[0], good[1], OnCuda(4096, address=8)),
        (OnCuda(2, 4092), OnCuda(2, 4092), OnCuda(4092)),
        (OnCuda(2, 16392), OnCuda(2, 16392), OnCuda(16392)),
        (torch.zeros(2, 64).bfloat16(), torch.zeros(2, 64).bfloat16(), torch.zeros(64).bfloat16()),
    ):
        assert not on.takes(*bad)


def launched(scope: dict[str, Any], on: bool, use_pdl: bool) -> bool:
    """`RELEASE_FIRST` of the second attention kernel."""
    said: dict[str, Any] = {}
    scope |= {"triton": SimpleNamespace(next_power_of_2=lambda v: v), "_is_hip": False, "_MIN_BLOCK_KV": 32}
    scope |= {"early_release": SimpleNamespace(on=lambda: on)}
    kernel = type("Kernel", (), {"__getitem__": lambda self, grid: lambda *words, **named: said.update(named)})()
    scope["_fwd_kernel_stage2"] = kernel
    rows = torch.zeros(2, 4, 64)
    scope["_decode_softmax_reducev_fwd"](
        torch.zeros(2, 4, 8, 64), rows, rows, rows, 1.0, rows, rows, rows, 8, None, use_pdl=use_pdl
    )
    return bool(said["RELEASE_FIRST"])


def test_attention_releases_first_where_it_is_launched_programmatically() -> None:
    scope = functions(OPS / "attention/decode_attention.py", ("_decode_softmax_reducev_fwd",), {})
    assert launched(scope, True, True)
    assert not launched(scope, False, True) and not launched(scope, True, False)


def test_attention_waits_after_it_released() -> None:
    text = (OPS / "attention/decode_attention.py").read_text(encoding="utf-8")
    kernel = text[text.index("def _fwd_kernel_stage2(") : text.index("def _decode_softmax_reducev_fwd(")]
    release, wait = kernel.index("gdc_launch_dependents()"), kernel.index("gdc_wait()")
    assert release < wait < kernel.index("tl.load(") and kernel.count("gdc_launch_dependents()") == 1


@pytest.mark.parametrize("on", [False, True])
def test_the_activation_is_another_build_of_stocks_file(on: bool) -> None:
    made: list[tuple[str, tuple[str, ...]]] = []

    def load(name: str, *words: Any, extra_cuda_cflags: Any, **named: Any) -> Any:
        assert named["cuda_files"] == ["elementwise/activation.cuh"]
        made.append((name, tuple(extra_cuda_cflags)))
        return SimpleNamespace(run_activation=lambda *words: None)

    scope: dict[str, Any] = {"torch": torch, "load_jit": load, "make_cpp_args": lambda *words: "args"}
    scope |= {"_fast_math_flags": lambda: ["--use_fast_math"], "is_arch_support_pdl": lambda: True}
    scope["early_release"] = SimpleNamespace(on=lambda: on)
    functions(OPS / "activation/activation.py", ("activation_module", "_run_activation_inplace"), scope)
    scope["_run_activation_inplace"]("silu", torch.zeros(2, 16), torch.zeros(2, 8))
    first = ("activation_release_first", ("--use_fast_math", "-DSGL_RELEASE_FIRST"))
    assert made == [first if on else ("activation", ("--use_fast_math",))]


@pytest.mark.parametrize("taken", [False, True])
def test_a_norm_that_is_not_taken_is_stocks(taken: bool) -> None:
    calls: list[tuple[str, float]] = []

    def ours(x: Any, residual: Any, weight: Any, eps: float, offset: float = 0.0) -> bool:
        calls.append(("ours", offset))
        return taken

    def theirs(x: Any, residual: Any, weight: Any, eps: float) -> None:
        calls.append(("stock", eps))

    scope: dict[str, Any] = {"torch": torch, "early_release": SimpleNamespace(add_norm=ours)}
    scope |= {"fused_add_rmsnorm": theirs, "gemma_fused_add_rmsnorm": theirs}
    scope |= {"is_batch_invariant_mode_enabled": lambda: False, "_flashinfer_rmsnorm_quant_available": False}
    path = TREE / "sglang/srt/layers/layernorm.py"
    layer = SimpleNamespace(weight=torch.ones(8), variance_epsilon=0.5, variance_size_override=None)
    layer.cast_x_before_out_mul = False
    x = torch.ones(2, 8)
    for inside, name, offset in (("RMSNorm", "forward_cuda", 0.0), ("GemmaRMSNorm", "_forward_impl", 1.0)):
        calls.clear()
        functions(path, (name,), scope, inside)[name](layer, x, x.clone())
        assert calls == [("ours", offset)] + ([] if taken else [("stock", 0.5)])
