"""The delta chooses a tile and touches nothing else: the kernel's text is stock's; the rule is that of LIMITS.md."""

import ast
import hashlib
from pathlib import Path
from typing import Any

import pytest

FILE = Path.cwd() / "sglang/kernels/ops/attention/fla/fused_sigmoid_gating_recurrent.py"
KERNEL = "fused_sigmoid_gating_delta_rule_update_kernel"
DIGEST = "c0d88b3c5623e45e3fb848c0e6287899865660c64aa8d9107fb22a3080f9781a"


def part(name: str) -> str:
    """The text of a function of the tree, without its decorators."""
    text = FILE.read_text(encoding="utf-8")
    node = next(node for node in ast.parse(text).body if getattr(node, "name", "") == name)
    return str(ast.get_source_segment(text, node))


def test_the_kernel_is_stocks() -> None:
    text = part(KERNEL)
    assert hashlib.sha256(text.encode()).hexdigest() == DIGEST
    assert hashlib.sha256((text + " ").encode()).hexdigest() != DIGEST


@pytest.mark.parametrize(
    ("states", "verifies", "is_kda", "cache_ring", "columns"),
    [
        (48, True, False, False, 8),
        (384, True, False, False, 8),
        (385, True, False, False, 32),
        (48, False, False, False, 32),
        (48, True, True, False, 32),
        (48, True, False, True, 32),
    ],
)
def test_which_steps_get_the_narrow_tile(
    states: int, verifies: bool, is_kda: bool, cache_ring: bool, columns: int
) -> None:
    scope: dict[str, Any] = {"FEW_COLUMNS": 8, "FEW_STATES": 384}
    exec(part("_tile_columns"), scope)
    assert scope["_tile_columns"](states, verifies, is_kda, cache_ring) == columns


def test_the_wrapper_asks_the_rule_once() -> None:
    text = part("fused_sigmoid_gating_delta_rule_update")
    assert text.count("_tile_columns(") == 1 and text.count("min(triton.next_power_of_2(V), columns)") == 1
