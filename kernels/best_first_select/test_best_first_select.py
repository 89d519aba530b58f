"""Node for node equal to the reference, ties included. On a CPU the kernels run in Triton's interpreter.

The interpreter has to be chosen before Triton is imported, so the CPU tests run in a process of their own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

SIGNATURES = ["pair", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("both", "unary"))]
CASES = Path(__file__).with_name("cases.py")


def run_cases(plan: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1] / "_testing")}
    if plan != "cuda":
        env["TRITON_INTERPRET"] = "1"
    return subprocess.run([sys.executable, str(CASES), plan], capture_output=True, text=True, env=env, check=False)


@pytest.mark.parametrize(("plan", "lattices"), [("few", 20), pytest.param("cpu", 300, marks=pytest.mark.slow)])
def test_equal_to_the_reference_in_the_interpreter(plan: str, lattices: int) -> None:
    done = run_cases(plan)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout and int(done.stdout.split()[0]) > lattices, done.stdout


@pytest.mark.gpu
def test_equal_to_the_reference_on_the_device() -> None:
    done = run_cases("cuda")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout


AS_IN_SGLANG = "triton.next_power_of_2 = lambda n: 1 << (n - 1).bit_length() if n > 0 else 1"
"""SGLang puts a plain function there, which no kernel may then call."""


@pytest.mark.parametrize("signature", SIGNATURES)
def test_compiles_for_hopper(signature: str) -> None:
    """To a cubin, without spills to local memory."""
    code = (
        f"import triton; {AS_IN_SGLANG}; from mount import mount; mount();"
        "from specpilot_kernels.best_first_select.compiled import compile_pick, compile_link;"
        f"pick = compile_pick({signature!r}); link = compile_link();"
        "assert pick.asm['cubin'] and link.asm['cubin'];"
        "assert 'redux.sync' in pick.asm['ptx'];"
        "assert '.local' not in pick.asm['ptx'], 'spills'"
    )
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1] / "_testing")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("signature", SIGNATURES)
def test_the_select_variant_compiles_for_hopper(signature: str) -> None:
    """To a cubin without spills, counting by ballots and `redux`; `link` waits for it on the device."""
    code = (
        f"import triton; {AS_IN_SGLANG}; from mount import mount; mount();"
        "from specpilot_kernels.best_first_select.compiled import compile_choose, compile_link, resources;"
        f"choose = compile_choose({signature!r});"
        "found = resources(choose); print(found);"
        "assert found['stack_bytes'] == 0, found;"
        "assert all(word in choose.asm['ptx'] for word in ('vote.sync.ballot', 'redux.sync.add', 'atom.shared'));"
        "assert 'griddepcontrol.launch_dependents' in choose.asm['ptx'];"
        "assert 'griddepcontrol.wait' in compile_link(waits=True).asm['ptx']"
    )
    env = {**os.environ, "PYTHONPATH": str(CASES.parents[1] / "_testing")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("arch", ["90a", "120a"])
def test_the_cuda_variant_compiles(arch: str, tmp_path: Path) -> None:
    import shutil

    from specpilot_kernels.best_first_select import threshold

    if shutil.which(threshold.compiler()) is None:
        pytest.skip("no nvcc here")
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    command = [threshold.compiler(), *threshold.FLAGS, target, "-Xptxas", "-v", str(threshold.SOURCE)]
    done = subprocess.run([*command, "-o", str(tmp_path / "t.so")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr and " 4 bytes spill" not in done.stderr


def test_bad_arguments_are_refused() -> None:
    from specpilot_kernels.best_first_select import op

    ids, unary = torch.zeros(1, 2, 3, dtype=torch.int32), torch.zeros(1, 2, 3)
    for arguments, message in [
        ((ids, None, None, 4), "give unary scores"),
        ((ids, unary, None, 0), "nodes must be from 1 to 255"),
        ((ids, unary[:, :1], None, 4), "unary must be contiguous"),
        ((ids.long(), unary, None, 4), "ids must be contiguous torch.int32"),
        ((ids, None, torch.zeros(1, 2, 3, 4), 4), "pair must be contiguous"),
    ]:
        with pytest.raises(ValueError, match=message):
            op.select(*arguments)


@pytest.mark.parametrize(("nodes", "variant", "kernel"), [
    (39, None, "popped"), (40, None, "chosen"), (192, "triton", "popped"), (8, "triton-select", "chosen"),
])  # fmt: skip
def test_the_kernel_is_chosen_by_nodes_or_by_name(
    nodes: int, variant: str | None, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from specpilot_kernels.best_first_select import launch, op

    called: list[str] = []
    for name in ("popped", "chosen", "link"):
        monkeypatch.setattr(launch, name, lambda *_, name=name: called.append(name))
    op.select(torch.zeros(1, 2, 3, dtype=torch.int32), torch.zeros(1, 2, 3), None, nodes, variant=variant)
    assert called == [kernel, "link"]


def test_compiled_kernels_have_a_folder_without_platformdirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specpilot_kernels.best_first_select import threshold

    monkeypatch.setitem(sys.modules, "platformdirs", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert threshold.cache_folder() == tmp_path / "specpilot" / "kernels"
