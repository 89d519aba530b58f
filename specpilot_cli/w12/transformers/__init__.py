"""W12 in Hugging Face Transformers: the linears of a loaded model in 12 bits, and greedy decoding with CUDA graphs.

    model = AutoModelForCausalLM.from_pretrained(…, dtype=torch.bfloat16).to("cuda").eval()
    quantize(model)                                    # in place; model(…) and model.generate(…) go on as before
    tokens = Decoder(model, length=1024).greedy(ids, 256)

The weights are the same bits; products may round differently in the last place, because they sum in another order.
"""

from __future__ import annotations

from specpilot_cli.w12.transformers.decode import Decoder
from specpilot_cli.w12.transformers.merge import merge
from specpilot_cli.w12.transformers.replace import Report, quantize

__all__ = ["Decoder", "Report", "merge", "quantize"]
