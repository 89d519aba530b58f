"""GPU traces into steps, phases and classes; work of the classes from shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_sglang.traces import TraceWriter

from specpilot_cli.core.errors import ExternalFailed
from specpilot_cli.profiling.gpu_classes import kernel_class
from specpilot_cli.profiling.gpu_profile import Models, kernel_classes, phases_ms, unplaced, wall_ms
from specpilot_cli.profiling.gpu_trace import Kernel, decode_steps, read_trace, shared_time
from specpilot_cli.profiling.model_shape import DraftShape, ModelShape
from specpilot_cli.profiling.model_work import Load, target_work

TARGET = ModelShape(hidden=8, mlp=16, vocab=32, heads=2, kv_heads=1, head_dim=4, layers=("full",))
MODELS = Models(TARGET, DraftShape(TARGET, block=4, features=2))
LAYER = [("nvjet_qkv", 4.0), ("_fwd_grouped_kernel_stage1", 3.0), ("nvjet_o", 2.0), ("nvjet_gate_up_splitK", 6.0)]
LAYER += [("act_and_mul_kernel", 1.0), ("nvjet_down", 5.0), ("cublasLt::splitKreduce_kernel", 1.0)]
MARK = "step[VERIFY bs=1 g_sq=4 g_sqsq=16 g_sqsk=40 g_sk=10]"


def speculative(steps: int, *, admit_at: int = -1) -> TraceWriter:
    """Steps of: preparation, draft pass, gap, target pass, accept, commit. One may be preceded by a prefill."""
    trace = TraceWriter()
    for step in range(steps):
        if step == admit_at:
            trace.passed("step[EXTEND bs=1 toks=9]", ("nvjet_prefill", 50.0))
        trace.outside(("_prepare_dflash_draft_block_contig_kernel", 2.0), ("index_kernel", 1.0))
        trace.passed(
            "step[DRAFT bs=1 g_sq=4 g_sqsq=16 g_sqsk=40 g_sk=10]", *LAYER, ("nvjet_head", 9.0), ("argmax", 1.0)
        )
        trace.gap(7.0)
        trace.passed(MARK, *LAYER, ("nvjet_head", 9.0))
        trace.outside(("reduce_kernel<ArgMaxOps>", 2.0), ("_dflash_accept_bonus_contig_kernel", 1.0))
        trace.outside(("nvjet_fc", 3.0), ("set_kv_buffer_prefix_valid_tiled", 2.0), ("Memcpy DtoH", 1.0))
        trace.gap(5.0)
    return trace


def test_steps_phases_and_gaps(tmp_path: Path) -> None:
    steps = decode_steps(read_trace(speculative(4).write(tmp_path / "t.json.gz")))
    assert len(steps) == 3, "the last one has no end"
    layer = sum(length for _, length in LAYER)
    assert phases_ms(steps) == pytest.approx(
        {"draft": (3 + layer + 10) / 1e3, "verify": (layer + 9) / 1e3, "accept": 3e-3, "commit": 6e-3}
    )
    assert wall_ms(steps) * 1e3 == pytest.approx(steps[0].busy_us + 12)
    target = steps[0].target
    assert (target.batch, target.rows, target.kv_tokens, target.pairs) == (1, 4, 10, 40)
    assert steps[0].draft is not None and steps[0].draft.rows == 4


def test_a_step_with_an_admitted_prompt_is_left_out(tmp_path: Path) -> None:
    steps = decode_steps(read_trace(speculative(5, admit_at=2).write(tmp_path / "t.json.gz")))
    assert len(steps) == 3
    assert not [k for step in steps for k in step.kernels if k.name == "nvjet_prefill"]


def test_products_are_told_apart_by_their_order(tmp_path: Path) -> None:
    steps = decode_steps(read_trace(speculative(3).write(tmp_path / "t.json.gz")))
    found = {(c.phase, c.name): c for c in kernel_classes(steps, MODELS)}
    for name, micros in (("gemm_qkv", 4), ("gemm_o", 2), ("gemm_gate_up", 6), ("gemm_down", 6), ("lm_head", 9)):
        for phase in ("draft", "verify"):
            assert found[phase, name].time_ms * 1e3 == pytest.approx(micros), "a split product's second kernel included"
    assert found["verify", "gemm_down"].calls == 2
    assert found["verify", "attention"].time_ms == pytest.approx(3e-3)
    assert found["accept", "sampling"].bytes == 4 * 32 * 2
    assert sum(c.time_ms for c in found.values()) == pytest.approx(steps[0].busy_us / 1e3)
    assert found["verify", "gemm_gate_up"].bytes == 2 * (32 * 8 + 4 * (32 + 8))
    assert found["verify", "gemm_gate_up"].flop == 2 * 4 * 32 * 8
    assert unplaced(steps, MODELS) == {}


def test_products_of_another_number_stay_together(tmp_path: Path) -> None:
    trace = TraceWriter()
    for _ in range(3):
        trace.passed("step[DECODE bs=2]", *LAYER, ("nvjet_more", 1.0), ("nvjet_head", 9.0), ("mystery", 2.0))
        trace.outside(("argmax_kernel", 1.0))
    steps = decode_steps(read_trace(trace.write(tmp_path / "t.json.gz")))
    found = {(c.phase, c.name): c for c in kernel_classes(steps, Models(TARGET, None))}
    assert found["verify", "gemm"].time_ms * 1e3 == pytest.approx(4 + 2 + 6 + 5 + 1 + 1 + 9)
    works = target_work(TARGET, Load(2, 2, 0, 0, verifies=False))
    products = [works[n] for n in ("gemm_qkv", "gemm_o", "gemm_gate_up", "gemm_down", "lm_head")]
    assert found["verify", "gemm"].bytes == sum(work.bytes for work in products)
    assert unplaced(steps, Models(TARGET, None)) == pytest.approx({"mystery": 2e-3})
    assert found["verify", "other"].bytes == 0, "no work is known, so its floor is its own time"


def test_overlapping_kernels_share_their_time() -> None:
    kernels = [Kernel("a", 0.0, 10.0, 0), Kernel("b", 4.0, 10.0, 0), Kernel("c", 20.0, 1.0, 0)]
    shares = [kernel.share_us for kernel in shared_time(kernels)]
    assert shares == pytest.approx([7.0, 7.0, 1.0])
    assert sum(shares) == pytest.approx(15.0), "the time in which anything ran"


def test_a_kernel_that_waits_in_its_stream_has_only_what_it_adds() -> None:
    """Programmatic dependent launch: it begins inside its predecessor and ends a little after it."""
    kernels = [Kernel("recurrence", 0.0, 24.0, 0, stream=7), Kernel("norm", 1.0, 24.5, 0, stream=7)]
    assert [kernel.share_us for kernel in shared_time(kernels)] == pytest.approx([24.0, 1.5])
    beside = Kernel("other stream", 10.0, 4.0, 0, stream=8)
    shares = {kernel.name: kernel.share_us for kernel in shared_time([*kernels, beside])}
    assert shares == pytest.approx({"recurrence": 22.0, "norm": 1.5, "other stream": 2.0})


@pytest.mark.parametrize("content", [b"", b"[]", b'{"traceEvents": [{"cat": "kernel", "ph": "X"}]}', b"\x1f\x8bx"])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t").write_bytes(content)
    with pytest.raises(ExternalFailed):
        read_trace(tmp_path / "t")


def test_a_cpu_trace_and_a_single_step_are_refused(tmp_path: Path) -> None:
    trace = TraceWriter()
    trace.passed("step[DECODE bs=1]")
    with pytest.raises(ExternalFailed, match="0 GPU kernels"):
        read_trace(trace.write(tmp_path / "t"))
    with pytest.raises(ExternalFailed, match="no complete decode step"):
        decode_steps(read_trace(speculative(1).write(tmp_path / "t")))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>", "gemm"),
        ("_fwd_grouped_kernel_stage1", "attention"),
        ("_fwd_kernel_stage2", "attention"),
        ("create_flashinfer_kv_indices_triton", "attention_prep"),
        ("fused_sigmoid_gating_delta_rule_update_kernel", "gdn_recurrence"),
        ("_fused_qkvzba_causal_conv1d_update_contiguous_kernel", "gdn_conv"),
        ("_fused_mamba_state_scatter_with_mask_kernel", "gdn_commit"),
        ("_fused_conv_window_scatter_multi_kernel", "gdn_commit"),
        ("void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>", "norm_act"),
        ("_layer_norm_fwd_1pass_kernel", "norm_act"),
        ("_fused_qk_rmsnorm_rope_gate_kernel", "norm_act"),
        ("_selector_walk_kernel", "selector"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::BFloat16, at::native::ArgMaxOps>>",
            "sampling",
        ),
        ("_dflash_accept_bonus_contig_kernel", "sampling"),
        ("set_kv_buffer_prefix_valid_tiled", "kv_write"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("nvjet_tst_128x8_64x12_4x1_v_bz_splitK_TNN", "gemm"),
        ("triton_poi_fused_add_permute_unsqueeze_view_2", "selector"),
        ("triton_per_fused_mul_squeeze_sum_view_1", "selector"),
        ("triton_poi_fused_add_arange_bitwise_and_constant_pad_nd_ge_mul_select_slice_unsqueeze_view_0", "draft_conv"),
        ("triton_poi_fused__to_copy_0", "copy"),
        ("vectorized_elementwise_kernel", "other"),
        ("void commit::walk<128>(Problem)", "gdn_commit"),
        ("gdn_commit_kernel", "gdn_commit"),
        ("void verify::solve_tree<128, 32>(Problem)", "gdn_recurrence"),
        ("void read::read_tree<read::Shape<32, 128, 3, 16> >(Problem)", "gdn_recurrence"),
        ("_verify", "gdn_recurrence"),  # Triton's, along paths and all paths at once
        ("gdn_tree_conv_kernel", "gdn_conv"),
        ("void head_bound_kernel<Config<4, 1>>(Problem)", "lm_head"),
        ("void w12_gemm_kernel<Config<256>>(CUtensorMap, Problem)", "gemm"),
    ],
)
def test_names(name: str, expected: str) -> None:
    assert kernel_class(name) == expected
