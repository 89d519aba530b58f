"""The converted checkpoint against Transformers, an independent implementation, token for token in float32.

TESTBED_TARGET: folder that `examples/testbed/convert.py` wrote. SGLANG_TEST_PYTHON: an interpreter with Transformers.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from specpilot_cli.testbed.chat import chat_encoder  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.files import load  # noqa: E402
from specpilot_cli.testbed.nn.generate import Generator, greedy  # noqa: E402

MESSAGES = (
    "What is the capital of France?",
    "Write a function to find the sum of 17 numbers.",
    "Ada has 12 apples and gives 5 to Ben. How many are left?",
    "Why is the sky blue?",
)
NEW_TOKENS = 48
NEEDED = ("TESTBED_TARGET", "SGLANG_TEST_PYTHON")


@pytest.mark.slow
@pytest.mark.skipif(any(n not in os.environ for n in NEEDED), reason=f"needs {' and '.join(NEEDED)}")
def test_greedy_text_is_that_of_transformers() -> None:
    folder = Path(os.environ["TESTBED_TARGET"])
    encode = chat_encoder(folder)
    prompts = [encode(message) for message in MESSAGES]
    target = load(folder)
    assert isinstance(target, DenseModel)
    ours = Generator(target, len(prompts), 256).run(prompts, NEW_TOKENS, greedy, None)
    script = Path(__file__).with_name("hf_greedy.py")
    done = subprocess.run(
        [os.environ["SGLANG_TEST_PYTHON"], str(script), str(folder), str(NEW_TOKENS)],
        input=json.dumps(prompts), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ours == json.loads(done.stdout)
    assert "Paris" in target_text(folder, ours[0])


def target_text(folder: Path, ids: list[int]) -> str:
    """The text of token ids."""
    from specpilot_cli.testbed.chat import load_tokenizer

    text: str = load_tokenizer(folder).decode(ids)
    return text
