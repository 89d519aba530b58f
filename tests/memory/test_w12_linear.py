"""The entry `w12-linear`: its copies of kernels/, and the method in the real SGLang on a CPU with reference products.

The engine's tests need `SGLANG_TEST_PYTHON` (an interpreter with SGLang's dependencies, `tests/engine_sglang/`) and its
wheel: `SGLANG_TEST_WHEEL`, or pip downloads 27 MB.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from memory.patched_engine import Trees, added_files, both_trees, compiled, needs_engine, needs_nvcc, passes, run
from memory.w12_model import write_model
from support.cli import Cli

from specpilot_cli.core.paths import share_dir
from specpilot_cli.memory.contracts import contract_fault
from specpilot_cli.memory.entry import load_entry
from specpilot_cli.memory.guard import render
from specpilot_cli.memory.variants import load_variants, server_words

HERE = Path(__file__).resolve().parent
ENTRY = share_dir("memory") / "sglang-0.5.20" / "w12-linear"
OURS = ("sglang/srt/layers/quantization/w12", "sglang/kernels/jit/csrc/gemm/w12")


@pytest.fixture
def added(tmp_path: Path) -> Path:
    """The files that the delta adds."""
    return added_files(ENTRY, tmp_path, *OURS)


def test_copies_of_kernels_have_their_digests_and_the_codec_keeps_every_bit(added: Path) -> None:
    assert contract_fault(ENTRY, added) is None


def test_a_changed_copy_is_noticed(added: Path) -> None:
    path = added / "sglang/kernels/jit/csrc/gemm/w12/sm90.cuh"
    path.write_bytes(path.read_bytes() + b"\n")
    assert "test_every_copy_has_the_digest_of_its_source" in str(contract_fault(ENTRY, added))


def test_what_it_touches_and_how_it_is_switched() -> None:
    entry, variants = load_entry(ENTRY).entry, load_variants(ENTRY)
    assert variants is not None
    changed = [path for path in entry.delta.paths if not path.startswith(OURS)]
    assert len(changed) == 5, "registry, choices, drafter's default, loader, weight updates"
    assert entry.delta.vary == ("max_total_num_tokens", "quantization") and entry.applies.devices == ("sm90",)
    assert server_words([variants], []) == ()
    words = server_words([variants], ["w12=w12", "kernel-rows=64", "early=off"])
    assert words == ("--quantization", "w12", "@env:SGLANG_W12_MAX_ROWS=64", "@env:SGLANG_W12_EARLY=0")


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Trees:
    """Environments of the stock tree and of the tree that the entry gives."""
    return both_trees(tmp_path_factory.mktemp("w12"), "w12-linear")


def test_the_region_travels_with_the_tree(added: Path) -> None:
    assert (added / OURS[0] / "guard.py").read_text() == render(load_entry(ENTRY).entry)


REFERENCE = {"SGLANG_W12_REFERENCE": "1"}
"""On a CPU the method is off: it is outside of the entry's region."""
ALL_PACKED = "w12: 8 linear weights packed, each decoded again and equal to what was loaded, bit for bit"


def generated(env: dict[str, str], model: Path, method: str) -> tuple[object, str]:
    """What `w12_generate.py` prints, and what the engine logs."""
    done = run(env, str(HERE / "w12_generate.py"), str(model), method)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@needs_engine
@pytest.mark.slow
def test_the_method_in_the_engine(trees: Trees) -> None:
    passes(trees["patched"], HERE / "w12_engine_checks.py")


@pytest.fixture(scope="module")
def plain(trees: Trees, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    """A model without biases, and what stock generates with it."""
    model = write_model(tmp_path_factory.mktemp("plain") / "model")
    return model, generated(trees["stock"], model, "none")[0]


def assert_packed_and_equal(trees: Trees, model: Path, method: str, stock: object) -> None:
    ours, said = generated(trees["patched"] | REFERENCE, model, method)
    assert ours == stock
    assert ALL_PACKED in said


@needs_engine
@pytest.mark.slow
def test_greedy_text_is_that_of_bf16_to_the_last_bit_of_a_logprob(trees: Trees, plain: tuple[Path, object]) -> None:
    assert_packed_and_equal(trees, plain[0], "w12", plain[1])


@needs_engine
@pytest.mark.slow
def test_with_biases_too(trees: Trees, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model", biases=True)
    assert_packed_and_equal(trees, model, "w12", generated(trees["stock"], model, "none")[0])


@needs_engine
@pytest.mark.slow
def test_outside_of_the_region_it_is_off_and_the_log_says_so_once(trees: Trees, plain: tuple[Path, object]) -> None:
    ours, said = generated(trees["patched"], plain[0], "w12")
    assert ours == plain[1]
    assert said.count("w12-linear is off: devices cpu not in sm90") == 1
    assert "linear weights packed" not in said


def damage(weights: Path, tensor: str) -> None:
    """Flip a bit in the middle of a tensor."""
    data = bytearray(weights.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begin, end = header[tensor]["data_offsets"]
    data[8 + int.from_bytes(data[:8], "little") + (begin + end) // 2] ^= 1
    weights.write_bytes(data)


@needs_engine
@pytest.mark.slow
def test_a_packed_checkpoint_loads_and_a_damaged_one_does_not(
    trees: Trees, plain: tuple[Path, object], tmp_path: Path, cli: Cli
) -> None:
    (model, stock), packed = plain, tmp_path / "packed"
    cli("w12", "pack", str(model), "-o", str(packed)).expect(0)
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "w12"}
    (packed / "config.json").write_text(json.dumps(config))
    assert_packed_and_equal(trees, packed, "none", stock)

    whole = (packed / "model.safetensors").read_bytes()
    for tensor, named in (
        ("model.layers.1.mlp.down_proj.weight.w12.records", "w12: model.layers.1.mlp.down_proj.weight, channel "),
        ("model.layers.1.input_layernorm.weight", "w12: model.layers.1.input_layernorm.weight: its bytes do not give"),
    ):
        (packed / "model.safetensors").write_bytes(whole)
        damage(packed / "model.safetensors", tensor)
        done = run(trees["patched"] | REFERENCE, str(HERE / "w12_generate.py"), str(packed), "none")
        assert done.returncode != 0
        assert named in done.stderr


JIT = """
from sglang.kernels.jit.utils.arch import override_jit_cuda_arch
from sglang.srt.layers.quantization.w12 import ops, plan
with override_jit_cuda_arch(9, 0):
    module = ops._module()
names = [str(module.name(i)) for i in range(module.count())]
table = [plan.Variant(i, n, module.rows(i), module.records(i), bool(module.view(i)), module.partial_bytes(i))
         for i, n in enumerate(names)]
device = plan.Device(table, 132, lambda entry, split: 132 // split)
chosen = {m: plan.choose(device, m, 24576, early=True) for m in range(1, plan.MAX_ROWS + 1)}
assert all(v.rows >= m and not v.view for m, v in chosen.items())
assert max(v.partial_bytes for v in table) * plan.MAX_BLOCKS < 40e6
assert module.expand(*[0] * 7, 128, 12, 0, 0) == 1  # cudaErrorInvalidValue: K is no multiple of 8
print("compiled", sorted({v.name for v in chosen.values()}))
"""


@needs_engine
@pytest.mark.slow
@needs_nvcc
def test_the_engine_s_own_jit_compiles_the_copies_for_sm_90a(trees: Trees, tmp_path: Path) -> None:
    assert compiled(trees["patched"], JIT, tmp_path).startswith("compiled ['tall', 'wide4']")
