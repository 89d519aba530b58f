"""What the arms' outputs have to do with each other, and what a step consists of."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor

PRODUCTS = ("gemm", "gemv", "cutlass", "nvjet", "w12", "splitk", "xmma")


def parting(base: str, name: str, decoders: dict[str, Any], outputs: dict[str, Tensor], ids: Tensor) -> str:
    """Where the outputs of two arms part, and how close the two tokens were there.

    Both arms have read the same text up to that place. If all logits moved by at most d between the arms, the choice
    can only fall differently where the base's margin between the two tokens is at most 2 d.
    """
    expected, found = outputs[base], outputs[name]
    apart = (expected != found).nonzero().flatten()
    if not len(apart):
        return f"RESULT {name}: {len(found)} tokens identical with those of {base}"
    at = int(apart[0])
    for arm in (base, name):
        decoders[arm].greedy(ids, at + 1)  # the same graph on the same text: the same logits again
    ours, theirs = decoders[base].logits[0].float(), decoders[name].logits[0].float()
    mine, yours = int(expected[at]), int(found[at])
    gap, moved = float(ours[mine] - ours[yours]), float((ours - theirs).abs().max())
    spread = float(ours.topk(2).values.diff().abs())
    return (
        f"RESULT {name}: parts from {base} at token {at} of {len(found)}; margin of {mine} over {yours} there "
        f"{gap:.4f} (best over second {spread:.4f}), logits differ by at most {moved:.4f} between the arms, "
        f"they are {float(ours.std()):.2f} wide: {'near-tie' if gap <= 2 * moved else 'NO NEAR-TIE'}"
    )


@torch.no_grad()
def forced(name: str, model: Any, ids: Tensor, found: Tensor) -> str:
    """The BF16 model reads prompt and output at once: how often is the output its own choice, how near where not?"""
    text = torch.cat((ids[0], found))[None]
    logits = model(input_ids=text[:, :-1], use_cache=False).logits[0, ids.shape[1] - 1 :].float()
    best, chosen = logits.max(-1), logits.gather(1, found[:, None])[:, 0]
    margins = (best.values - chosen)[best.indices != found]
    typical = float(logits.topk(2, -1).values.diff(dim=-1).abs().median())
    largest = float(margins.max()) if len(margins) else 0.0
    return (
        f"forced {name}: {len(margins)} of {len(found)} tokens are not the BF16 model's own choice when it reads them "
        f"at once ({int((margins == 0).sum())} of those exact ties), largest margin {largest:.4f}; its median margin "
        f"between best and second is {typical:.4f}"
    )


def kernels(name: str, decoder: Any, ids: Tensor) -> str:
    """Kernels of one replayed step, and their time apart from products."""
    from torch.profiler import ProfilerActivity, profile

    try:
        decoder.prefill(ids)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as trace:
            decoder.run(3)
            torch.cuda.synchronize()
        count, micros = Counter[str](), Counter[str]()
        for event in trace.events():
            if "CUDA" in str(event.device_type):
                count[event.name] += 1
                micros[event.name] += event.device_time_total
    except Exception as error:
        return f"kernels {name}: not traced: {type(error).__name__}: {str(error)[:200]}"
    is_product = {k: any(word in k.lower() for word in PRODUCTS) for k in count}
    products = sum(v for k, v in count.items() if is_product[k]) / 3
    busy = sum(v for k, v in micros.items() if is_product[k]) / 3e3
    rest = sum(micros.values()) / 3e3 - busy
    top = "; ".join(f"{count[k] / 3:.0f} x {k[:60]} {v / count[k]:.1f} us" for k, v in micros.most_common(8))
    return (
        f"kernels {name}: {sum(count.values()) / 3:.0f} a step, {products:.0f} of them products with {busy:.3f} ms, "
        f"the others {rest:.3f} ms (overlap counted twice); {top}"
    )
