"""Which servers of the tree that `tree-core` gives start, and as what: `python tree_refusals.py JOB.json`.

The job: `target`, `drafter`, and `cases`, lists of flags. Prints JSON, a line a case: the refusal, or the widths.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.configs import Qwen3NextConfig
from sglang.srt.server_args import prepare_server_args
from sglang.srt.speculative.draft_tree.settings import check_target

WIDTHS = (
    "speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_dspark_block_size",
    "speculative_eagle_topk", "attention_backend",
)  # fmt: skip


def main() -> None:
    """Run the job."""
    job = json.loads(Path(sys.argv[1]).read_text())
    plain = ["--model-path", job["target"], "--device", "cpu", "--skip-tokenizer-init"]
    for case in job["cases"]:
        words = [word for word in case if not word.startswith("@env:")]
        settings = dict(word.removeprefix("@env:").split("=") for word in case if word.startswith("@env:"))
        os.environ.update(settings)
        try:
            args = prepare_server_args([*plain, "--speculative-draft-model-path", job["drafter"], *words])
            args.resolve_once()
            cfg = resolving_view(args)
            said = {name: getattr(cfg, name) for name in WIDTHS}
        except ValueError as error:
            said = {"refused": str(error)}
        for name in settings:
            del os.environ[name]
        print("CASE " + json.dumps(said), flush=True)
    dense = SimpleNamespace(get_text_config=lambda: None, text_config=None, model_type="qwen3")
    hybrid = Qwen3NextConfig()
    for config, kind in ((hybrid, "MHA"), (dense, "MLA"), (dense, "MHA")):
        target = SimpleNamespace(
            hf_config=config,
            is_draft_model=False,
            linear_attn_registry_result=None,
            attention_arch=SimpleNamespace(name=kind),
        )
        try:
            check_target(target)
            said = {"served": kind}
        except ValueError as error:
            said = {"refused": str(error)}
        print("CASE " + json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
