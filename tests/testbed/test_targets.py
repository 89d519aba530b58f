"""The plain targets: decoding with a cache gives what one pass gives; files hold exactly the architecture's tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402
from testbed import tiny  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from specpilot_cli.core.errors import InputUnusable  # noqa: E402
from specpilot_cli.testbed.nn import gated_delta  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import build, load, save  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, ended, greedy, sampler  # noqa: E402
from specpilot_cli.testbed.nn.hybrid import HybridConfig, HybridModel  # noqa: E402

Model = DenseModel | HybridModel


def logits(model: Model, ids: list[int]) -> Tensor:
    """Of every row, by one pass."""
    hidden, _ = model(torch.tensor([ids]))
    return F.linear(hidden[0], model.head)


@pytest.mark.parametrize("model", [tiny.dense(), tiny.hybrid()], ids=["dense", "hybrid"])
def test_decoding_step_by_step_gives_what_one_pass_gives(model: Model) -> None:
    ids = torch.randint(0, tiny.VOCAB, (2, 70)).tolist()
    cache = model.new_cache(2, 80)
    rows, lengths = torch.tensor(ids), torch.tensor([66, 66])
    found = [model.prefill(rows[:, :66], lengths, cache)]
    for at in range(66, 70):
        found.append(model.step(rows[:, at], torch.tensor([at, at]), cache))
    for number, text in enumerate(ids):
        wanted = logits(model, text)[65:70]
        assert tiny.close(torch.stack(found, 1)[number], wanted)


def test_prompts_of_different_lengths_do_not_see_their_padding() -> None:
    model = tiny.dense()
    prompts = [[1, 2, 3], list(range(9)), [5] * 6]
    together = Generator(model, 4, 40).run(prompts, 20, greedy, None)
    alone = [Generator(model, 1, 40).run([p], 20, greedy, None)[0] for p in prompts]
    assert together == alone


def test_greedy_text_is_the_argmax_of_one_pass() -> None:
    model = tiny.hybrid()
    (answer,) = Generator(model, 1, 40).run([[4, 5, 6]], 20, greedy, None)
    assert logits(model, [4, 5, 6, *answer])[2:-1].argmax(-1).tolist() == answer


def test_a_stop_token_ends_a_text_and_too_much_is_refused() -> None:
    assert ended([1, 2, 3, 2], 2) == [1, 2] and ended([1, 3], 2) == [1, 3] and ended([1], None) == [1]
    generator = Generator(tiny.dense(), 2, 10)
    for prompts, new in (([[1]] * 3, 2), ([[1] * 9], 2)):
        with pytest.raises(ValueError, match="do not fit"):
            generator.run(prompts, new, greedy, None)


def test_sampling_is_seeded_and_keeps_to_the_likeliest() -> None:
    rows = torch.randn(50, 20)
    first = [sampler(seed, "cpu", 3, 1.0)(rows).tolist() for seed in (1, 1, 2)]
    assert first[0] == first[1] != first[2]
    best = rows.topk(3, -1).indices
    assert all(token in best[i] for i, token in enumerate(first[0]))


def test_the_chunked_rule_is_the_recurrence() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 150, 8) for _ in range(3))
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    g, beta = -torch.rand(2, 3, 150), torch.rand(2, 3, 150)
    out, state = gated_delta.chunked(q, k, v, g, beta)
    kept = torch.zeros(2, 3, 8, 8)
    for t in range(150):
        row, kept = gated_delta.step(q[:, :, t], k[:, :, t], v[:, :, t], g[:, :, t], beta[:, :, t], kept)
        assert tiny.close(out[:, :, t], row)
    assert tiny.close(state, kept)


@pytest.mark.parametrize("kind", ["dense", "hybrid", "DFLASH2", "DSPARK", "eagle"])
def test_a_saved_module_comes_back_rounded_to_bfloat16(kind: str, tmp_path: Path) -> None:
    module, config = made(kind)
    manifest = save(module, config, tmp_path, {"what": kind})
    back = load(tmp_path)
    assert type(back) is type(module) and shapes(back) == shapes(module)
    for name, tensor in module.state_dict().items():
        assert torch.equal(back.state_dict()[name], tensor.bfloat16().float()), name
    assert manifest["parameters"] == sum(t.numel() for t in load_file(tmp_path / "model.safetensors").values())


def made(kind: str) -> tuple[torch.nn.Module, dict[str, object]]:
    """A module and its config.json."""
    if kind == "dense":
        model = tiny.dense()
        return model, {"architectures": ["LlamaForCausalLM"], **vars(model.config)}
    if kind in ("DFLASH2", "DSPARK"):
        drafter = tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
        return drafter, drafter.config.to_json()
    other = tiny.hybrid() if kind == "hybrid" else tiny.eagle()
    return other, other.config.to_json()


@pytest.mark.parametrize("kind", ["dense", "hybrid"])
def test_in_bfloat16_the_rotary_tables_stay_wide_and_decoding_works(kind: str, tmp_path: Path) -> None:
    """Texts of a cached and an uncached run may part at near-ties of BF16; the first token may not."""
    module, config = made(kind)
    save(module, config, tmp_path, {})
    model = load(tmp_path, dtype=torch.bfloat16)
    assert isinstance(model, DenseModel | HybridModel)
    assert model.cos.dtype == torch.float32 and model.embedding.dtype == torch.bfloat16
    (answer,) = Generator(model, 1, 40).run([[4, 5, 6]], 20, greedy, None)
    assert int(logits(model, [4, 5, 6])[-1].argmax()) == answer[0] and len(answer) == 20


@pytest.mark.parametrize("damage", ["missing", "unknown", "shape"])
def test_a_tensor_that_is_not_the_architectures_is_an_error(damage: str, tmp_path: Path) -> None:
    module, config = made("DSPARK")
    save(module, config, tmp_path, {})
    tensors = load_file(tmp_path / "model.safetensors")
    weight = tensors.pop("markov_head.markov_w1.weight")
    if damage != "missing":
        tensors["markov_head.w1.weight" if damage == "unknown" else "markov_head.markov_w1.weight"] = weight[
            :, :2
        ].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputUnusable, match="not those of its config"):
        load(tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputUnusable, match="not a checkpoint folder"):
        load(tmp_path)
    with pytest.raises(InputUnusable, match="MambaForCausalLM"):
        build({"architectures": ["MambaForCausalLM"]})


@pytest.mark.slow
@pytest.mark.skipif("SGLANG_TEST_PYTHON" not in os.environ, reason="SGLANG_TEST_PYTHON names no interpreter")
def test_the_hybrid_is_the_qwen3_5_of_transformers(tmp_path: Path) -> None:
    """Same checkpoint folder, same greedy text (the tokens of a random model at float32 are far apart or equal)."""
    config = HybridConfig(200, 64, 96, 8, 4, 2, 2, 6, head_dim=32, linear_key_head_dim=16, linear_value_head_dim=16)
    torch.manual_seed(5)
    model = HybridModel(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter.data, -0.3, 0.3)
    save(model, config.to_json(), tmp_path, {})
    prompts = [[7, 8, 9, 10], [100, 3, 50, 20]]
    ours = Generator(load(tmp_path), 2, 64).run(prompts, 40, greedy, None)
    script = Path(__file__).with_name("hf_greedy.py")
    done = subprocess.run(
        [os.environ["SGLANG_TEST_PYTHON"], str(script), str(tmp_path), "40"],
        input=json.dumps(prompts), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert ours == json.loads(done.stdout)


def test_nothing_outside_nn_imports_torch() -> None:
    modules = "benchmarks chat gguf_llama".split()
    code = "import sys; " + "; ".join(f"import specpilot_cli.testbed.{m}" for m in modules)
    subprocess.run([sys.executable, "-c", code + "; assert 'torch' not in sys.modules"], check=True)


def shapes(module: torch.nn.Module) -> object:
    """What its config.json says; the configuration itself where there is no `to_json`."""
    config = module.config
    return config.to_json() if hasattr(config, "to_json") else config
