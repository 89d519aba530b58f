"""What SGLang 0.5.20 accepts silently: pure checks over configs, tensor names and engine flags; no GPU, no weights."""

from specpilot_cli.lint.finding import Finding
from specpilot_cli.lint.pair import Checkpoint, Pair, Tensor
from specpilot_cli.lint.read import read_checkpoint, read_pair
from specpilot_cli.lint.run import Report, lint

__all__ = ["Checkpoint", "Finding", "Pair", "Report", "Tensor", "lint", "read_checkpoint", "read_pair"]
