"""What an entry costs and gives at the start: seconds until a server answers, KV pool, weights, what was compared.

    python starts.py --stock STOCK --patched W12 --deployment hyb27b__ar__h200-sxm__r32 --folder DIR

Each server has the GPU to itself and sizes its KV pool by what is free, so `--max-total-tokens` of the deployment is
left out. Run it when the kernels are compiled (after a paired run): else the first start compiles them.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from pathlib import Path
from typing import Any

from specpilot_cli.deployment import load_deployment
from specpilot_cli.engine.flags import without
from specpilot_cli.engine.sglang.adapter import SglangAdapter

W12 = ("--quantization", "w12")
LOADED = re.compile(r"Load weight end\. elapsed=([0-9.]+) s.*mem usage=([0-9.]+) GB")
PACKED = re.compile(r"w12: (\d+) linear weights packed, each decoded again and equal .*")


def started(worktree: Path, args: tuple[str, ...], log: Path) -> dict[str, Any]:
    """Start one server, read its figures, stop it.

    Returns:
        ready_s: until it answers; load_s: the engine's own time for the weights; weights_gib: the engine's "mem usage",
        in 2^30 bytes; kv_tokens: of the pool; packed: what the entry says of its check, None for stock.
    """
    begin = time.perf_counter()
    server = SglangAdapter().launch(worktree, args, log=log, timeout_s=400)
    try:
        ready, info = time.perf_counter() - begin, server.info()
        text = log.read_text(errors="replace")
        loaded, packed = LOADED.search(text), PACKED.search(text)
        return {
            "ready_s": round(ready, 2),
            "load_s": float(loaded[1]) if loaded else None,
            "weights_gib": float(loaded[2]) if loaded else None,
            "kv_tokens": info.get("max_total_num_tokens"),
            "packed": packed[0] if packed else None,
        }
    finally:
        server.close()


def main() -> None:
    """Stock and patched in turn, as often as asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stock", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--deployment", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=1)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    args = without(load_deployment(options.deployment).record.server_args, "--max-total-tokens")
    arms = {"stock": (options.stock, args), "w12": (options.patched, (*args, *W12))}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    for repeat in range(options.repeats):
        for name, (tree, flags) in arms.items():
            found[name].append(started(tree, flags, options.folder / f"start-{name}-{repeat}.log"))
            print(f"START {name}: {found[name][-1]}", flush=True)
            (options.folder / "starts.json").write_text(json.dumps({"deployment": options.deployment, **found}))
    for stock, ours in zip(found["stock"], found["w12"], strict=True):
        longer, pools = ours["ready_s"] - stock["ready_s"], (stock["kv_tokens"], ours["kv_tokens"])
        print(f"RESULT ready {longer:+.1f} s against stock; KV pool {pools[0]} -> {pools[1]} tokens", flush=True)


if __name__ == "__main__":
    main()
