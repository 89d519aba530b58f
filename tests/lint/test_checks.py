"""Each defect alone is found, once, and a clean pair has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lint.checkpoints import DFLASH, DFLASH2, DSPARK, FLAGS, TARGET, headers, pair

from specpilot_cli.core.paths import share_dir
from specpilot_cli.deployment import load_deployment
from specpilot_cli.engine.sglang.adapter import flag_value
from specpilot_cli.engine.sglang.place import resolve
from specpilot_cli.lint import Checkpoint, Finding, Pair, Tensor, lint, read_checkpoint


def only(given: Pair, check: str) -> Finding:
    """The one finding."""
    found = lint(given).findings
    assert [finding.check for finding in found] == [check], [finding.line() for finding in found]
    return found[0]


@pytest.mark.parametrize("kind", ["DFLASH", "DFLASH2", "DSPARK"])
def test_a_clean_pair(kind: str) -> None:
    report = lint(pair(kind))
    assert report.findings == () and report.left_out == ()


def test_every_shipped_sglang_deployment_is_clean() -> None:
    checked = 0
    for path in sorted((share_dir("profiles") / "deployments").glob("*.toml")):
        record = load_deployment(path.stem).record
        flags = resolve(record.server_args).flags if record.engine.startswith("sglang") else ()
        target, drafter = flag_value(flags, "--model-path"), flag_value(flags, "--speculative-draft-model-path")
        if target and drafter:
            report = lint(Pair(read_checkpoint(Path(target)), read_checkpoint(Path(drafter)), flags))
            assert report.findings == (), (path.stem, [finding.line() for finding in report.findings])
            assert len(report.left_out) == 2  # shapes have no weights
            checked += 1
    assert checked >= 4


def test_a_missing_tensor() -> None:
    tensors = headers(DFLASH)
    del tensors["layers.1.mlp.down_proj.weight"]
    assert "layers.1.mlp.down_proj.weight" in only(pair(tensors=tensors), "missing-tensor").fact


@pytest.mark.parametrize(
    ("kind", "config", "name"),
    [
        ("DFLASH2", DFLASH2, "candidate_selector.successor_codebook"),
        ("DFLASH2", DFLASH2, "layers.0.mlp_conv.base_kernel"),
        ("DSPARK", DSPARK, "markov_head.markov_w2.weight"),
        ("DFLASH", DFLASH, "fc.weight"),
    ],
)
def test_missing_tensors_of_every_kind(kind: str, config: dict[str, Any], name: str) -> None:
    tensors = headers(config)
    del tensors[name]
    assert name in only(pair(kind, tensors=tensors), "missing-tensor").fact


def test_a_misspelt_tensor_is_missing_under_its_name_and_unknown_under_the_other() -> None:
    tensors = headers(DFLASH)
    tensors["layers.0.self_attn.query_proj.weight"] = tensors.pop("layers.0.self_attn.q_proj.weight")
    found = lint(pair(tensors=tensors)).findings
    assert [finding.check for finding in found] == ["missing-tensor", "unknown-tensor"]
    assert "query_proj" in found[1].fact and "layers.0.self_attn.q_proj.weight" in found[1].remedy


def test_names_that_the_loader_takes_as_well() -> None:
    tensors = {f"model.{name}": tensor for name, tensor in headers(DFLASH).items()}
    tensors["encoder.fc.weight"] = tensors.pop("model.fc.weight")
    tensors |= {"lm_head.weight": Tensor((32, 8), "BF16"), "model.embed_tokens.weight": Tensor((32, 8), "BF16")}
    for part in "qkv":  # a fused tensor stands for the three
        del tensors[f"model.layers.0.self_attn.{part}_proj.weight"]
    tensors["model.layers.0.self_attn.qkv_proj.weight"] = Tensor((16, 8), "BF16")
    assert lint(pair(tensors=tensors)).findings == ()


def test_an_alias_counts_without_a_prefix_alone() -> None:
    tensors = headers(DFLASH)
    tensors["model.encoder.fc.weight"] = tensors.pop("fc.weight")
    assert [f.check for f in lint(pair(tensors=tensors)).findings] == ["missing-tensor", "unknown-tensor"]


def test_a_wrong_shape() -> None:
    tensors = headers(DFLASH) | {"fc.weight": Tensor((8, 24), "BF16")}  # three features for two ids
    assert "fc.weight [8, 24] for [8, 16]" in only(pair(tensors=tensors), "tensor-shape").fact


def test_quantised_and_unknown_drafters_say_that_their_tensors_were_left_out() -> None:
    report = lint(pair(drafter={"quantization_config": {"quant_method": "fp8"}}, tensors={}))
    assert report.findings == () and "quantised" in report.left_out[0]
    report = lint(pair(drafter={"architectures": ["SomethingElse"]}, tensors={}, flags=()))
    assert report.findings == () and len(report.left_out) == 2


CONFIG_DEFECTS: list[tuple[str, dict[str, Any], str, str]] = [
    ("DFLASH", {"target": {"hidden_size": 16}}, "hidden-size", "is 8, the target's 16"),
    ("DFLASH2", {"target": {"vocab_size": 64}}, "vocabulary", "is 32, the target's 64"),
    ("DSPARK", {"target": {"vocab_size": 64}}, "vocabulary", "is 32, the target's 64"),
    ("DFLASH", {"target": {"architectures": ["Qwen2ForCausalLM"]}}, "capture-hook", "no hook for DFLASH"),
    ("DFLASH", {"drafter": {"num_target_layers": 5}}, "capture-layers", "trained on 5"),
    ("DFLASH", {"nested": {"target_layer_ids": [1, 5]}}, "capture-layers", "has the last layer, 5"),
    ("DFLASH", {"nested": {"target_layer_ids": [1, 6]}}, "capture-layers", "not layers 0 to 5"),
    ("DFLASH", {"nested": {"target_layer_ids": [3, 1]}}, "capture-layers", "do not rise"),
    ("DFLASH", {"nested": {"target_layer_ids": [1, True]}}, "capture-layers", "not layers"),
    ("DFLASH", {"nested": {"target_layer_ids": None}}, "capture-layers", "names no target_layer_ids"),
    ("DFLASH", {"nested": {"mask_token_id": 32}}, "mask-token", "not in the target's vocabulary"),
    ("DSPARK", {"nested": {"mask_token_id": None}}, "mask-token", "no mask_token_id"),
    ("DFLASH", {"drafter": {"max_position_embeddings": 32}}, "context", "64 tokens of context"),
    ("DFLASH", {"drafter": {"hidden_act": "gelu"}}, "drafter-config", "gelu"),
    ("DFLASH2", {"nested": {"conv_group_size": None}}, "drafter-config", "Only one of conv_kernel_size"),
]


@pytest.mark.parametrize(("kind", "changes", "check", "said"), CONFIG_DEFECTS)
def test_defects_of_configs(kind: str, changes: dict[str, Any], check: str, said: str) -> None:
    made = pair(kind, **changes)
    made = Pair(made.target, Checkpoint("drafter", made.drafter.config), made.flags)  # the weights are another matter
    assert said in only(made, check).fact


def test_the_last_layer_of_gemma4_can_be_captured() -> None:
    assert lint(pair(target={"model_type": "gemma4_text"}, nested={"target_layer_ids": [1, 5]})).findings == ()


def test_looped_targets_have_more_layers() -> None:
    looped = {"num_loops": 2}
    assert (
        lint(pair(target=looped, drafter={"num_target_layers": 12}, nested={"target_layer_ids": [1, 9]})).findings == ()
    )


def test_selector_keys_outside_of_dflash_config_are_not_read() -> None:
    made = pair(
        "DFLASH2",
        drafter={"selector_rank": 3, "selector_top_k": 4},
        nested={"selector_rank": None, "selector_top_k": None},
    )
    found = [finding for finding in lint(made).findings if finding.check == "drafter-config"]
    assert "selector_rank and selector_top_k outside of dflash_config" in found[0].fact
    assert "without a selector_rank" in found[1].fact


def test_a_mask_token_by_name() -> None:
    bare = {"mask_token_id": None}
    assert lint(pair(nested=bare, tokens=frozenset({"<|MASK|>"}))).findings == ()
    assert "no added token <|MASK|>" in only(pair(nested=bare, tokens=frozenset({"<pad>"})), "mask-token").fact
    assert "skip-tokenizer-init" in only(pair(nested=bare, flags=(*FLAGS, "--skip-tokenizer-init")), "mask-token").why


def test_dsparks_own_spelling_of_the_keys() -> None:
    made = pair("DSPARK", drafter={"dspark_noise_token_id": 30, "dspark_block_size": 7}, nested={"mask_token_id": None})
    assert made.nested("mask_token_id") == 30 and made.nested("block_size") == 7
    assert lint(made).findings == ()


def test_qwen35_has_no_hook_for_eagle3() -> None:
    target = Checkpoint("t", {**TARGET, "architectures": ["Qwen3_5ForConditionalGeneration"]}, {})
    drafter = Checkpoint("d", {"architectures": ["LlamaForCausalLMEagle3"]}, {})
    report = lint(Pair(target, drafter, ("--speculative-algorithm", "EAGLE3")))
    assert [finding.check for finding in report.findings] == ["capture-hook"]
    assert report.left_out and "no DFLASH" in report.left_out[0]


def block_flags(*added: str) -> tuple[str, ...]:
    return (*FLAGS[2:], *added)


FLAG_DEFECTS: list[tuple[str, tuple[str, ...], str, str]] = [
    ("DFLASH", block_flags("--speculative-num-draft-tokens", "7"), "block", "γ"),
    ("DFLASH", block_flags("--speculative-dflash-block-size=16"), "block", "another block than it was trained on"),
    ("DSPARK", block_flags("--speculative-dspark-block-size", "8"), "block", "without the anchor: 7"),
    ("DSPARK", block_flags("--speculative-num-draft-tokens", "7"), "block", "refuses to start"),
    ("DFLASH", (*FLAGS, "--quantization", "fp8"), "quantization", "quantised as well"),
    ("DFLASH", (*FLAGS, "--speculative-eagle-topk", "4"), "topk", "set to 1"),
    ("DFLASH", (*FLAGS, "--max-running-requests", "16"), "graphs", "eagerly"),
    ("DFLASH", (*FLAGS, "--speculative-algorithm", "DSPARK"), "algorithm", "another drafter"),
    ("DFLASH", (*FLAGS, "--context-length", "128"), "context", "rotary"),
    ("DFLASH", (*FLAGS, "--json-model-override-args", '{"vocab_size": 64}'), "override-args", "drafter's config"),
    ("DFLASH", (*FLAGS, "--json-model-override-args", "{"), "override-args", "drafter's config"),
]


@pytest.mark.parametrize(("kind", "flags", "check", "said"), FLAG_DEFECTS)
def test_defects_of_flags(kind: str, flags: tuple[str, ...], check: str, said: str) -> None:
    assert said in only(pair(kind, flags=flags), check).why


def test_two_flags_for_one_block_that_differ() -> None:
    flags = block_flags("--speculative-num-draft-tokens", "8", "--speculative-dflash-block-size", "7")
    assert "8 and --speculative-dflash-block-size 7" in only(pair(flags=flags), "block").fact


def test_without_max_running_requests_the_default_counts() -> None:
    flags = ("--cuda-graph-max-bs-decode", "8")
    assert "48 requests may run" in only(pair(flags=flags), "graphs").fact
    assert lint(pair(flags=("--cuda-graph-max-bs-decode", "48"))).findings == ()


@pytest.mark.parametrize(
    "flags",
    [
        ("--quantization", "fp8", "--speculative-draft-model-quantization", "unquant"),
        ("--quantization", "unquant"),
        ("--json-model-override-args", '{"num_experts_per_tok": 4}'),
        ("--speculative-eagle-topk", "1"),
        ("--speculative-algorithm", "dflash"),
    ],
)
def test_flags_that_are_right(flags: tuple[str, ...]) -> None:
    assert lint(pair(flags=(*FLAGS, *flags))).findings == ()


def eagle(*flags: str, window: int | None = None) -> Pair:
    target = Checkpoint("t", {**TARGET, "sliding_window": window}, {})
    return Pair(target, Checkpoint("d", {"architectures": ["LlamaForCausalLMEagle3"]}, {}), flags)


TREE = ("--speculative-eagle-topk", "4", "--page-size", "16")


def test_trees_over_pages() -> None:
    assert only(eagle(*TREE, "--attention-backend", "flashmla"), "page-size").fact.endswith("on flashmla.")
    assert lint(eagle(*TREE, "--attention-backend", "triton")).findings == ()
    assert "raises" in only(eagle(*TREE, "--attention-backend", "fa3", window=128), "page-size").why
    assert lint(eagle(*TREE, "--attention-backend", "fa3")).findings == ()


def test_an_eagle3_checkpoint_as_eagle_and_a_chain_of_another_length() -> None:
    assert "accept length 1.0" in only(eagle("--speculative-algorithm", "EAGLE"), "algorithm").why
    chain = ("--speculative-eagle-topk", "1", "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "8")
    assert "num-draft-tokens 4" in only(eagle(*chain), "block").remedy


def test_a_target_of_other_weights_and_a_missing_shard() -> None:
    made = pair()
    wrong = {"model.embed_tokens.weight": Tensor((32, 16), "BF16")}
    assert "32×16" in only(Pair(Checkpoint("t", TARGET, wrong), made.drafter, FLAGS), "target-embedding").fact
    absent = Checkpoint("t", TARGET, {}, absent=("model.norm.weight",))
    assert "model.norm.weight" in only(Pair(absent, made.drafter, FLAGS), "missing-shard").fact


def test_a_finding_is_one_line() -> None:
    tensors = headers(DFLASH) | {"layers.0.\x1b[2J\nodd": Tensor((1,), "F32")}
    text = only(pair(tensors=tensors), "unknown-tensor").line()
    assert "\n" not in text and "\x1b" not in text and text.endswith("[models/dflash.py:767-880]")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 100) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted({*DFLASH2, *DSPARK, "text_config", "dspark_config", "mask_token", "quantization_config", "num_loops"})


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine makes inputs slowly
@given(
    st.dictionaries(st.sampled_from(KEYS), JSON), st.dictionaries(st.sampled_from(KEYS), JSON),
    st.lists(st.sampled_from([*FLAGS, "--quantization", "--json-model-override-args", "[]", "{}"]), max_size=6),
)  # fmt: skip
def test_odd_configs_never_fail(target: dict[str, Any], drafter: dict[str, Any], flags: list[str]) -> None:
    for architecture in ("DFlashDraftModel", "DFlash2DraftModel", "Qwen3DSparkModel"):
        config = {**drafter, "architectures": [architecture]}
        made = Pair(Checkpoint("t", target, {}), Checkpoint("d", config, headers(DFLASH)), tuple(flags))
        for finding in lint(made).findings:
            assert finding.line().count("\n") == 0
