"""Deployment files for checkpoints in a folder: `profile`, `pair-run`, `force-tokens` and `seal` can serve them.

    python examples/testbed/deployments.py --target DIR --drafters DIR --gpu h200-sxm --requests gsm8k.jsonl --out DIR
    specpilot profile STOCK --deployment DIR/smollm2__dflash2__h200-sxm__r1.toml -o profile.json

The paths in them are those of this machine, which is why they are written and not committed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

FLAGS = (
    "--skip-tokenizer-init --attention-backend triton --sampling-backend pytorch --grammar-backend none --page-size 1 "
    "--min-free-slots-delay 1 --disable-radix-cache --sleep-on-idle --disable-prefill-cuda-graph --context-length 2048 "
    "--mem-fraction-static 0.85 --random-seed 0"
).split()
DRAFT = "--speculative-draft-attention-backend triton".split()
ALGORITHMS = {
    "dflash2": "--speculative-algorithm DFLASH --speculative-dflash-block-size 8".split(),
    "dspark": "--speculative-algorithm DSPARK --speculative-dspark-block-size 7".split(),
    "eagle3": (
        "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 4 "
        "--speculative-num-draft-tokens 16"
    ).split(),
}
AR = "ar"


def document(name: str, options: argparse.Namespace, drafter: str, width: int) -> str:
    """One deployment as TOML; the drafter `ar` is none."""
    running = ["--max-running-requests", str(max(8, width)), "--cuda-graph-max-bs-decode", str(max(8, width))]
    running += ["--max-total-tokens", str(options.max_total_tokens)] if options.max_total_tokens else []
    hybrid = ["--linear-attn-backend", "triton"] if options.hybrid else []
    draft = [] if drafter == AR else ["--speculative-draft-model-path", str((options.drafters / drafter).resolve())]
    draft = [*ALGORITHMS[drafter], *draft, *DRAFT] if draft else []
    args = ["--model-path", str(options.target.resolve()), *FLAGS, *running, *hybrid, *draft]
    lines, said = "".join(f'  "{arg}",\n' for arg in args), "none" if drafter == AR else drafter
    return (
        f'id = "{name}"\nengine = "sglang-0.5.20"\nmodel = "{options.model}"\ndrafter = "{said}"\n'
        f'gpu = "{options.gpu}"\nrequests = "{options.requests.resolve()}"\nserver_args = [\n{lines}]\n\n'
        f"[shape]\nconcurrency = {width}\nmax_new_tokens = {options.new_tokens}\n"
    )


def main() -> int:
    """One file for each drafter that is there and each number of requests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--drafters", type=Path, required=True)
    parser.add_argument("--model", default="smollm2", help="first part of the ids")
    parser.add_argument("--gpu", required=True, help="a file of profiles/gpus/")
    parser.add_argument("--requests", type=Path, required=True, help="request file (requests_file.py)")
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 8, 24])
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--max-total-tokens", type=int, help="KV pool, where two servers share the GPU (pair-run)")
    parser.add_argument("--autoregressive", action="store_true", help="one without a drafter, too")
    parser.add_argument("--hybrid", action="store_true", help="the target has linear attention")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    drafters = [d for d in ALGORITHMS if (options.drafters / d / "config.json").is_file()]
    for drafter in [*drafters, *([AR] if options.autoregressive else [])]:
        for width in options.widths:
            name = f"{options.model}__{drafter}__{options.gpu}__r{width}"
            (options.out / f"{name}.toml").write_text(document(name, options, drafter, width), encoding="utf-8")
            print(options.out / f"{name}.toml")
    return 0


if __name__ == "__main__":
    sys.exit(main())
