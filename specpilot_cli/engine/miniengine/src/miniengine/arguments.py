"""Server arguments, named as SGLang's."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line on stderr and exit code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"miniengine: {message}\n")


def bounded(low: int, high: int) -> type[int]:
    """An int type for argparse that refuses values outside [low, high]."""

    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}")
        return value

    parse.__name__ = "int"
    return parse  # type: ignore[return-value]


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Resolve the command line; exits with 2 and one line when it is wrong."""
    parser = Parser(prog="miniengine.server", description="Serve one checkpoint by HTTP on the CPU.")
    add = parser.add_argument
    add("--model-path", type=Path, required=True, help="checkpoint directory")
    add("--speculative-algorithm", choices=("DFLASH2", "DSPARK"), help="drafter; without it decoding is autoregressive")
    add("--speculative-num-draft-tokens", type=bounded(1, 64), default=8, metavar="M",
        help="draft positions a step; M + 1 rows are verified (default 8)")  # fmt: skip
    add("--host", default="127.0.0.1")
    add("--port", type=bounded(0, 65535), default=30000, help="0 takes a free port")
    add("--num-threads", type=bounded(1, 256), default=1, help="intra-op threads (default 1)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32")
    add("--fp32-lm-head", action="store_true", help="compute the target's logits in float32 under bfloat16")
    add("--max-total-tokens", type=bounded(2, 1 << 24), default=65536, metavar="N",
        help="limit on prompt plus output tokens of one call")  # fmt: skip
    add("--random-seed", type=int, default=0)
    return parser.parse_args(argv)
