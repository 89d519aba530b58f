"""Trees give stock's bits on every path, in Triton's interpreter; the CUDA launch says what the kernel's own says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

HERE = Path(__file__).resolve().parent
OTHER = HERE.parents[1] / "gdn-commit" / "contracts"
sys.path[:0] = [str(OTHER), str(HERE.parents[3] / "kernels" / "_testing")]
import rooms  # noqa: E402

rows_of, native = rooms.part("rows"), rooms.part("native")


def test_every_path_has_the_bits_of_stocks_chain() -> None:
    """Outputs, committed states and windows, tracked prefixes; chains, random trees and places without a node."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-W", "ignore", str(HERE / "tree_routes.py")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["162942", "numbers,", "0", "differ"]


def test_the_verify_launch_says_what_the_kernels_own_caller_says() -> None:
    """The CUDA source on a CPU (`emulate.hpp`): the same outputs of every layer, whoever describes the problem."""
    from mount import mount

    mount()
    from specpilot_kernels.gdn_tree import native as own
    from specpilot_kernels.gdn_tree import op
    from specpilot_kernels.gdn_tree.reference import Inputs

    if shutil.which(own.command(own.HOST, 16)[0]) is None:
        pytest.skip("needs a C++ compiler")
    torch.manual_seed(0)
    sizes = rows_of.Sizes(2, 3, 5, 2, 4, 16, 32)
    kept = rows_of.StepRows(sizes, "cuda", "cpu")
    kept.a_log, kept.dt_bias = torch.randn(2, 4), torch.randn(2, 4).bfloat16()
    for tensor in (kept.mixed, kept.a, kept.b):
        tensor.normal_()
    state, slots = torch.randn(2, 6, 4, 32, 16), torch.tensor([4, 0, -1], dtype=torch.int32)
    words = op.ancestors(torch.tensor([[-1, 0, 0, 1, 3], [-1, 0, 1, 2, 3], [-1, -1, 0, 0, 2]]))
    calls = own.functions(own.HOST, 16)
    module = SimpleNamespace(verify=calls.gdn_tree_verify)
    launch = native.Verify(kept, state, module)
    for place in range(2):
        found = torch.zeros(3, 5, 4, 32, dtype=torch.bfloat16)
        launch(place, slots, words, found)
        given = kept.layer(place, 3, 5)
        q, k, v = given.mixed.split([32, 32, 128], -1)
        gates = (given.a.view(3, 5, 4), given.b.view(3, 5, 4), kept.a_log[place], kept.dt_bias[place])
        x = Inputs(q.view(3, 5, 2, 16), k.view(3, 5, 2, 16), v.view(3, 5, 4, 32), *gates)
        expected = own.verify(x, state[place], slots, words, 16**-0.5)
        assert torch.equal(found, expected) and found.float().abs().max() > 0
