"""The certified head inside the real SGLang 0.5.20 on a CPU: what is deferred, what is served, what is stock's.

`test_certified_head.py` runs this file in the patched tree, in an interpreter that has SGLang's dependencies.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.beam_search.logits_capture import capture_pre_sample_logits
from sglang.srt.layers.certified_head import attach, deferred
from sglang.srt.layers.certified_head.deferred import DeferredLogits, greedy_tokens, leaves_logits_alone, pending
from sglang.srt.layers.logits_processor import LogitsMetadata, LogitsProcessor, LogitsProcessorOutput
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.model_executor.model_runner_components import weight_updater
from sglang.srt.runtime_context import get_context, get_parallel
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.dspark_components.dspark_observability import DsparkStepObservers
from sglang.srt.speculative.dspark_components.dspark_verify import TargetVerifyExecutor, accept_draft_tokens
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

VOCABULARY, HIDDEN = 300, 128  # the module pads the vocabulary to 320


@pytest.fixture(scope="module", autouse=True)
def published() -> Iterator[None]:
    """A server's configuration, and BF16 as the type of new parameters."""
    alone = {"tp_rank": 0, "tp_size": 1, "attn_tp_rank": 0, "attn_tp_size": 1}
    with get_context().override_server_args(device="cpu"), get_parallel().override(**alone):
        torch.set_default_dtype(torch.bfloat16)
        yield
        torch.set_default_dtype(torch.float32)


@pytest.fixture
def model() -> torch.nn.Module:
    """An LM head with weights, and its logits processor."""
    made = torch.nn.Module()
    made.lm_head = ParallelLMHead(VOCABULARY, HIDDEN)
    weight = torch.randn(VOCABULARY, HIDDEN, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    with torch.no_grad():
        made.lm_head.weight.zero_()
        made.lm_head.weight[:VOCABULARY] = weight.bfloat16()
    made.logits_processor = LogitsProcessor(SimpleNamespace(vocab_size=VOCABULARY))
    return made


@pytest.fixture
def runner(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `attach` reads of a model's runner; the copy's switch is on."""
    monkeypatch.setattr(attach, "ENABLED", True)
    monkeypatch.setattr(attach, "_attached", False)
    return SimpleNamespace(
        model=model, is_draft_worker=False, server_args=SimpleNamespace(), spec_algorithm=SpeculativeAlgorithm.NONE,
        ps=SimpleNamespace(tp_size=1, pp_size=1),
    )  # fmt: skip


def states(rows: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).bfloat16()


def step(model: torch.nn.Module, x: torch.Tensor, mode: ForwardMode = ForwardMode.DECODE) -> LogitsProcessorOutput:
    """The logits processor's result."""
    metadata = LogitsMetadata(forward_mode=mode, extend_seq_lens=torch.ones(len(x), dtype=torch.int64))
    return model.logits_processor(None, x, model.lm_head, metadata)


class Requests(SimpleNamespace):
    """Sampling parameters of two requests."""

    def __len__(self) -> int:
        return 2


def greedy(**changes: Any) -> Any:
    """Sampling parameters of a batch without anything but temperature 0."""
    names = ("acc_additive_penalties", "acc_scaling_penalties", "grammar_mask", "logit_bias")
    plain = dict.fromkeys((*names, "sampling_mask_batch_indices", "penalizer_orchestrator"))
    return Requests(**{**plain, "has_custom_logit_processor": False, "is_all_greedy": True, **changes})


def test_without_the_copy_nothing_changes(model: torch.nn.Module, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "ENABLED", False)
    attach.attach(runner)
    assert not attach.attached() and type(step(model, states(3))) is LogitsProcessorOutput


def test_logits_of_a_reader_are_stocks_to_the_last_bit(model: torch.nn.Module, runner: Any) -> None:
    x = states(5)
    stock = step(model, x).next_token_logits
    attach.attach(runner)
    for mode in (ForwardMode.DECODE, ForwardMode.TARGET_VERIFY):
        output = step(model, x, mode)
        assert pending(output)
        assert torch.equal(output.next_token_logits, stock) and output.next_token_logits.shape == (5, VOCABULARY)
        output.next_token_logits.add_(1)  # what a bias does stays
        assert torch.equal(output.next_token_logits, stock + 1) and not pending(output)
        output.next_token_logits = None  # the scheduler frees them
        assert output.next_token_logits is None


def test_tokens_are_stocks_argmax(model: torch.nn.Module, runner: Any) -> None:
    x = states(64)
    x[:32] = model.lm_head.weight[torch.arange(0, 288, 9)]  # a clear winner
    stock = step(model, x).next_token_logits
    attach.attach(runner)
    output = step(model, x)
    tokens = greedy_tokens(output, greedy(), stock=False)
    assert tokens is not None and tokens.dtype == torch.int64 and pending(output)
    # where the two sums round to different BF16 numbers another token may win, within one step
    own = stock.gather(1, tokens[:, None])[:, 0]
    assert bool((stock.amax(1) - own <= stock.amax(1).abs() * 2.0**-7).all())
    assert torch.equal(tokens[:32], torch.arange(0, 288, 9)) and int((tokens != stock.argmax(1)).sum()) <= 2
    assert torch.equal(output.first(7).tokens(), tokens[:7])


def test_what_is_not_deferred(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    assert not pending(step(model, states(65)))  # more rows than the kernel takes
    assert not pending(step(model, states(3), ForwardMode.EXTEND))
    with torch.no_grad():
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())  # another matrix than was copied
    assert not pending(step(model, states(3)))


def test_who_needs_the_logits_gets_them(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    output = step(model, states(4))
    assert greedy_tokens(output, None, stock=False) is not None
    assert greedy_tokens(output, greedy(), stock=True) is None
    changes: list[dict[str, Any]] = [{name: torch.zeros(1)} for name in ("logit_bias", "acc_additive_penalties")]
    changes += [{"acc_scaling_penalties": torch.ones(1)}, {"grammar_mask": object()}]
    changes += [{"has_custom_logit_processor": True}, {"acc_linear_penalties": torch.zeros(1)}]
    changes += [{"penalizer_orchestrator": SimpleNamespace(is_required=True)}]
    for change in changes:
        assert not leaves_logits_alone(greedy(**change)), change
        assert greedy_tokens(output, greedy(**change), stock=False) is None, change
    assert leaves_logits_alone(greedy(penalizer_orchestrator=SimpleNamespace(is_required=False)))
    for change in ({"is_all_greedy": False}, {"sampling_mask_batch_indices": torch.zeros(1)}):
        assert greedy_tokens(output, greedy(**change), stock=False) is None, change
    assert pending(output)
    assert output.next_token_logits is not None and greedy_tokens(output, greedy(), stock=False) is None


def test_nan_checks_need_the_logits(model: torch.nn.Module, runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    attach.attach(runner)
    output = step(model, states(4))
    monkeypatch.setenv("SGLANG_SANITIZE_NAN_LOGITS", "1")
    assert greedy_tokens(output, greedy(), stock=False) is None


def test_the_runner_applies_a_bias_and_leaves_plain_requests_alone(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    touched: list[torch.Tensor] = []
    words = {"update_regex_vocab_mask": lambda: None, "apply_logits_bias": touched.append}
    output = step(model, states(4))
    ModelRunner._preprocess_logits(SimpleNamespace(), output, greedy(**words))
    assert not touched and pending(output)
    ModelRunner._preprocess_logits(SimpleNamespace(), output, greedy(**words, logit_bias=torch.zeros(1)))
    assert len(touched) == 1 and not pending(output)


def test_a_batch_without_beams_reads_nothing(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    output = step(model, states(4))
    batch = SimpleNamespace(beam_tail=None, reqs=[])
    capture_pre_sample_logits(batch, SimpleNamespace(forward_mode=ForwardMode.DECODE), output)
    assert pending(output)


def test_dflash_accepts_the_same_from_tokens_as_from_logits(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    block, requests = 4, 3
    x = model.lm_head.weight[torch.arange(block * requests) * 11].detach()
    predicted = torch.arange(block * requests).view(requests, block) * 11
    candidates = torch.cat([torch.zeros(requests, 1, dtype=torch.int64), predicted[:, :-1]], 1)
    candidates[1, 2] = 5  # the second request's draft parts here
    worker = SimpleNamespace(
        _selector_sample=None, block_size=block, _use_triton_accept_bonus=False,
        _tp_sync=SimpleNamespace(sync=lambda *_: None),
    )  # fmt: skip
    words: dict[str, Any] = {"candidates": candidates, "sampling_info": None, "draft_input": None, "bs": requests}
    words["prefix_lens"] = torch.zeros(requests, dtype=torch.int64)
    output = step(model, x, ForwardMode.TARGET_VERIFY)
    tokens = greedy_tokens(output, None, stock=False)
    ours = DFlashWorkerV2._accept_block(worker, next_token_logits=None, certified=tokens, **words)
    stock = DFlashWorkerV2._accept_block(worker, next_token_logits=output.next_token_logits, **words)
    for one, two in zip(ours, stock, strict=True):
        assert (one is None and two is None) or torch.equal(one, two)
    assert ours[0].tolist() == [3, 1, 3]


@pytest.mark.parametrize("cut", [False, True])
def test_dspark_accepts_the_same_from_tokens_as_from_logits(model: torch.nn.Module, runner: Any, cut: bool) -> None:
    runner.spec_algorithm = SpeculativeAlgorithm.DSPARK
    attach.attach(runner)
    rows, requests = 4, 3
    x = model.lm_head.weight[torch.arange(rows * requests) * 11].detach()
    predicted = torch.arange(rows * requests).view(requests, rows) * 11
    candidates = torch.cat([torch.zeros(requests, 1, dtype=torch.int64), predicted[:, :-1]], 1)
    candidates[1, 2] = 5  # the second request's draft parts here
    output = step(model, x, ForwardMode.TARGET_VERIFY)
    words: dict[str, Any] = {
        "candidates": candidates, "sampling_info": None, "draft_input": None, "gamma": 3,
        "verify_num_draft_tokens": rows, "draft_block": SimpleNamespace(greedy_mask=None),
        "cutoff_layout": SimpleNamespace(verify_lens=torch.tensor([2, 4, 4])) if cut else None,
    }  # fmt: skip
    tokens = greedy_tokens(output, None, stock=False)
    ours = accept_draft_tokens(target_logits=None, target_predict=tokens, **words)
    stock = accept_draft_tokens(target_logits=output.next_token_logits, **words)
    assert all(torch.equal(one, two) for one, two in zip(ours, stock, strict=True))
    assert ours[0].tolist() == [1 if cut else 3, 1, 3]


def test_dspark_verification_reads_no_logits_of_plain_requests(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    output = step(model, states(8), ForwardMode.TARGET_VERIFY)
    result = SimpleNamespace(logits_output=output)
    executor = SimpleNamespace(
        verify_num_draft_tokens=4, _verify_backend_self_adds_seq_lens=lambda: True,
        _forward_prepared_verify=lambda **_: result,
    )  # fmt: skip
    window = SimpleNamespace(positions_2d=torch.zeros(2, 4), verify_cache_loc=None)
    batch = SimpleNamespace(seq_lens_cpu=None, seq_lens_sum=0)
    words: dict[str, Any] = {"draft_input": None, "verify_window": window, "batch": batch}
    words["verify_ids_2d"] = torch.zeros(2, 4, dtype=torch.int64)
    TargetVerifyExecutor.run_non_compact(executor, sampling_info=greedy(), **words)
    assert pending(output)
    biased = greedy(logit_bias=torch.full((2, VOCABULARY), 2.0))
    before = step(model, states(8), ForwardMode.TARGET_VERIFY).next_token_logits
    TargetVerifyExecutor.run_non_compact(executor, sampling_info=biased, **words)
    assert torch.equal(output.next_token_logits, before + 2)


def test_dspark_measurements_need_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SimpleNamespace(_block_accept_recorder=None, _sts_collect_path="")
    reads = DsparkStepObservers.reads_target_logits.fget
    assert not reads(plain)
    assert reads(SimpleNamespace(_block_accept_recorder=None, _sts_collect_path="file"))
    assert reads(SimpleNamespace(_block_accept_recorder=object(), _sts_collect_path=""))
    monkeypatch.setenv("SGLANG_DSPARK_DEBUG_CONFIDENCE_METRICS", "1")
    assert reads(plain)


def test_weights_of_a_running_server_stay(runner: Any) -> None:
    assert weight_updater._unsupported_derived_weight_cache_error() is None
    attach.attach(runner)
    assert "SGLANG_CERTIFIED_HEAD" in str(weight_updater._unsupported_derived_weight_cache_error())


@pytest.mark.parametrize("change", ["tp", "draft", "scale", "cap", "fp32", "eagle", "dtype", "lora", "nan", "none"])
def test_what_gets_no_copy(model: torch.nn.Module, runner: Any, change: str) -> None:
    if change == "tp":
        runner.ps.tp_size = 2
    elif change == "draft":
        runner.is_draft_worker = True
    elif change == "scale":
        model.logits_processor.logit_scale = 0.5
    elif change == "cap":
        model.logits_processor.final_logit_softcapping = 30.0
    elif change == "fp32":
        model.logits_processor.use_fp32_lm_head = True
    elif change == "eagle":
        runner.spec_algorithm = SpeculativeAlgorithm.EAGLE
    elif change == "dtype":
        model.lm_head.weight.data = model.lm_head.weight.data.float()
    elif change == "lora":
        runner.server_args.enable_lora = True
    elif change == "nan":
        model.lm_head.weight.data[3, 3] = float("nan")
    elif change == "none":
        runner.model = torch.nn.Module()
    attach.attach(runner)
    assert not attach.attached() and getattr(model.lm_head, "certified", None) is None


def test_the_switches_that_refuse_it_are_fields_of_the_server() -> None:
    assert set(attach.SWITCHES) <= set(ServerArgs.__struct_fields__)


def test_a_graph_keeps_logits_that_were_read_while_it_was_captured(model: torch.nn.Module, runner: Any) -> None:
    attach.attach(runner)
    output = step(model, states(6))
    assert isinstance(output, DeferredLogits)
    held = output.next_token_logits
    part = output.first(2)
    assert (
        not pending(part) and part.next_token_logits.data_ptr() == held.data_ptr() and len(part.next_token_logits) == 2
    )
    assert deferred.greedy_tokens(part, greedy(), stock=False) is None
