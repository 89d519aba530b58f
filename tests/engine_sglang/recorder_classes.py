"""The recorder inside SGLang 0.5.20's own classes on a CPU: `python recorder_classes.py JOB.json`.

Drafters' heads from checkpoints, the samplers that the draft graph runs, and the workers' own way to a recorder. What
the rows, anchors and drafts of every step were is saved beside the recordings. Prints `REFUSED` lines for the flags.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TORCHDYNAMO_DISABLE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1] / "testbed"))

import torch
from safetensors.torch import load_file, save_file
from sglang.srt.distributed.parallel_state import init_distributed_environment, initialize_model_parallel
from sglang.srt.runtime_context import get_spec
from sglang.srt.server_args import ServerArgs, prepare_server_args, set_global_server_args_for_scheduler
from sglang_drafter import model_of
from torch import Tensor

REQUESTS, STEPS, ROWS = 3, 6, 8


def refused(job: dict[str, Any]) -> None:
    """What the flags may not be."""
    plain = f"--model-path {job['target']} --device cpu --attention-backend torch_native --skip-tokenizer-init"
    spec = f"--speculative-algorithm {{}} --speculative-draft-model-path {job['target']}"
    for more in (
        spec.format("EAGLE"), f"{spec.format('DFLASH')} --tp-size 2",
        "--speculative-lattice-interval 0 " + spec.format("DSPARK"), spec.format("DFLASH"), spec.format("DSPARK"),
    ):  # fmt: skip
        os.environ["SGLANG_SIMULATE_ACC_LEN"] = "3" if "DSPARK" in more and "interval" not in more else "-1"
        args = prepare_server_args([*plain.split(), "--speculative-lattice-dir", job["out"], *more.split()])
        try:
            args.resolve_once()
        except ValueError as error:
            print("REFUSED", str(error).replace("\n", " "))
    os.environ["SGLANG_SIMULATE_ACC_LEN"] = "-1"


def worker(model: Any, head: Any) -> Any:
    """What a worker's `_maybe_build_lattice_recorder` reads of it."""
    runner = SimpleNamespace(model=SimpleNamespace(lm_head=head), max_running_requests=4)
    return SimpleNamespace(
        _is_domino=False, _target_worker=SimpleNamespace(model_runner=runner), model_runner=runner, draft_model=model,
        selector=model.candidate_selector, block_size=ROWS, gamma=ROWS - 1,
        model_config=SimpleNamespace(vocab_size=head.org_vocab_size),
    )  # fmt: skip


def sampler_of(kind: str, model: Any, head: Any) -> tuple[Any, Any]:
    """The head that the draft graph runs, and the recorder that its worker makes, with the tap in place."""
    from sglang.srt.speculative import dflash_worker_v2 as dflash
    from sglang.srt.speculative.dspark_components import dspark_draft_sampler, dspark_worker_v2

    if kind == "DSPARK":
        recorder = dspark_worker_v2.DSparkWorkerV2._maybe_build_lattice_recorder(worker(model, head))
        sync = SimpleNamespace(sync=lambda _, value: value)
        options = {"gamma": ROWS - 1, "max_bs": 4, "device": "cpu", "tp_sync": sync}
        return dspark_draft_sampler.DsparkDraftSampler(model=model, folded_sampling=False, **options), recorder
    recorder = dflash.DFlashWorkerV2._maybe_build_lattice_recorder(worker(model, head))
    if kind == "DFLASH2":
        options = {"block_size": ROWS, "max_bs": 4, "device": "cpu", "sampling_enabled": False}
        return dflash._SelectorDraftSampler(draft_model=model, **options), recorder
    size = head.org_vocab_size
    made = dflash._DflashDraftSampler(weight=head.weight, block_size=ROWS, num_org=size, org_vocab_start=0, max_bs=4)
    made.lattice_tap = recorder.tap
    return made, recorder


def request(number: int) -> Any:
    """As much of `Req` as the recorder reads."""
    params = SimpleNamespace(
        top_k=1, frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0, logit_bias=None, min_new_tokens=0
    )
    return SimpleNamespace(
        rid=f"r{number}", origin_input_ids=[1, 2, 3], output_ids=[4 + number], finished_len=None, grammar=None,
        sampling_params=params, custom_logit_processor=None, multimodal_inputs=None, finished=lambda: False,
    )  # fmt: skip


def record(kind: str, model: Any, head: Any, out: Path) -> None:
    """Some steps; the target accepts no draft, or the first one."""
    with get_spec().override(speculative_lattice_dir=str(out / kind), speculative_lattice_interval=1):
        sampler, recorder = sampler_of(kind, model, head)
    width, first = head.weight.shape[1], 0 if kind == "DSPARK" else 1
    rows = ROWS - 1 if kind == "DSPARK" else ROWS
    reqs, kept = [request(n) for n in range(REQUESTS)], []
    for step in range(STEPS):
        hidden = torch.randn(REQUESTS * rows, width)
        block = torch.zeros(REQUESTS, rows, dtype=torch.long)
        block[:, 0] = torch.tensor([req.output_ids[-1] for req in reqs])
        sampler(hidden, block.reshape(-1))
        drafts = sampler.out[: REQUESTS * (ROWS - 1)].view(REQUESTS, -1).clone()
        accepted = torch.tensor([(step + n) % 2 for n in range(REQUESTS)])
        bonus = (drafts.gather(1, accepted.unsqueeze(1))[:, 0] + 1) % head.org_vocab_size
        place = torch.tensor([3 + len(req.output_ids) - 1 for req in reqs])
        whole = torch.cat((block[:, :1], drafts), 1)
        recorder.observe(reqs=reqs, prefix_lens=place, block=whole, accepted=accepted, bonus=bonus)
        kept.append({"rows": hidden.view(REQUESTS, rows, width)[:, first:], "block": whole})
        for n, req in enumerate(reqs):
            req.output_ids += [*drafts[n, : int(accepted[n])].tolist(), int(bonus[n])]
    for req in reqs:
        req.finished_len = len(req.output_ids)
        recorder.finish(req.rid)
    recorder.close()
    saved: dict[str, Tensor] = {name: torch.stack([one[name] for one in kept]) for name in kept[0]}
    save_file(saved, out / f"{kind}.safetensors")


@torch.no_grad()
def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    refused(job)
    set_global_server_args_for_scheduler(ServerArgs(model_path=job["target"], device="cpu"))
    init_distributed_environment(1, 0, f"file://{job['rendezvous']}", 0, "gloo")
    initialize_model_parallel()
    from sglang.srt.models.dflash import DFlash2DraftModel
    from sglang.srt.models.dspark import Qwen3DSparkModel

    weight = load_file(f"{job['target']}/model.safetensors")["lm_head.weight"].float()
    head = SimpleNamespace(weight=weight, org_vocab_size=len(weight), quant_method=None)
    torch.manual_seed(0)
    for kind, cls in (("DFLASH2", DFlash2DraftModel), ("DSPARK", Qwen3DSparkModel)):
        model = model_of(job[kind], cls)
        model.lm_head = head
        record(kind, model, head, Path(job["out"]))
    plain = SimpleNamespace(candidate_selector=None)
    record("DFLASH", plain, head, Path(job["out"]))


if __name__ == "__main__":
    main()
