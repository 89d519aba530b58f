"""Lets SGLang's CUDA-graph runners run on a CPU, for tests: a graph is the captured call, made again on its buffers.

What is the engine's own: capture shapes, static input buffers, padding, attention metadata, tail hooks, which batch
takes a graph. What a replay returns is copied into the outputs of the capture, as a real graph writes there. What this
cannot show: that every operation may be captured, streams, and addresses that Python chose anew at a replay.
"""

from __future__ import annotations

from pathlib import Path

from engine_sglang.drafters_on_cpu import replace

RUNNER = "model_executor/runner/decode_cuda_graph_runner.py"
SETUP = "model_executor/model_runner_components/cuda_graph_setup.py"
BACKEND = '''

class FullCudaGraphBackend(BaseCudaGraphBackend):
    """A graph is the captured call."""

    def __init__(self, cuda_graph_runner, **_):
        self._runner, self._graphs, self.replays = cuda_graph_runner, {}, 0

    @contextmanager
    def capture_session(self, stream):
        yield

    def capture_one(self, shape_key, forward_fn, capture_inputs=None, post_warmup_hook=None):
        forward_fn()
        if post_warmup_hook is not None:
            post_warmup_hook()
        metadata = [part.forward_metadata for part in self._parts()]
        self._graphs[shape_key] = forward_fn, metadata, forward_fn()

    def _parts(self):
        """The attention backend, or those that a hybrid one holds."""
        backend = self._runner.attn_backend
        return getattr(backend, "attn_backend_list", None) or [backend]

    def can_run(self, forward_batch, shape_key):
        return shape_key in self._graphs

    @contextmanager
    def replay_session(self):
        yield

    def replay(self, shape_key, static_forward_batch, **kwargs):
        from sglang.srt.model_executor.forward_context import ForwardContext, forward_context

        forward_fn, metadata, kept = self._graphs[shape_key]
        backend = self._runner.attn_backend
        for part, kept_metadata in zip(self._parts(), metadata):
            part.forward_metadata = kept_metadata
        with forward_context(ForwardContext(attn_backend=backend)):
            made = forward_fn()
        for name in ("next_token_logits", "hidden_states"):
            if getattr(kept, name) is not None and getattr(kept, name) is not getattr(made, name):
                getattr(kept, name).copy_(getattr(made, name))
        self.replays += 1
        if self.replays == 3:
            print("graph replayed", shape_key, flush=True)
        return kept

    def cleanup(self):
        self._graphs.clear()
'''
CAPTURE = """graph_capture(
                        stream=get_or_create_global_graph_capture_stream()
                    )"""
MODE = "forward_batch.forward_mode.is_{}_graph"
CHANGES = (
    (SETUP, 'if model_runner.device == "cpu" and not get_flags().capture.enable_torch_compile:', "if False:"),
    (SETUP, 'if model_runner.device != "cpu" and check_cuda_graph_backend(', "if check_cuda_graph_backend("),
    (SETUP, '                "cpu": CPUGraphRunner,\n', ""),
    ("model_executor/model_runner.py", MODE.format("cpu"), MODE.format("cuda")),
    (RUNNER, CAPTURE, "contextlib.nullcontext(type('Context', (), {'stream': None}))"),
    (RUNNER, "if not self.device_module.is_current_stream_capturing():", "if True:"),
)


def allow_graphs(worktree: Path) -> None:
    """Change the engine of a worktree that runs on a CPU already."""
    root = worktree / "sglang" / "srt"
    for name, old, new in CHANGES:
        replace(root / name, old, new)
    backend = root / "model_executor" / "runner_backend" / "full_cuda_graph_backend.py"
    backend.write_text(backend.read_text() + BACKEND)
