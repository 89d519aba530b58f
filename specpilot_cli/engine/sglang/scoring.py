"""Teacher-forced scoring through stock SGLang: what `/generate` gives with `return_logprob`, and when it may score.

Entry t of `input_token_logprobs` scores token t given the tokens before it; the first is None. Log-probabilities are
float32 log-softmax over the LM head's output, which is float32 only with `--enable-fp32-lm-head` (bfloat16 products
summed in float32; `srt/layers/logits_processor.py:921-940`). The top list may miss the forced token, and equal values
in it have no fixed order, so the token's own value is read from the token list and ties go to the lowest id. The label
of the vocabulary's last id comes back as 0, its value is right (`logprob_result_processor.py:54` has `<` for `<=`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specpilot_cli.core.errors import EnvironmentUnusable, ExternalFailed
from specpilot_cli.engine.base import TokenScore

TOP = 32
NARROW_KV = ("fp8", "fp4", "int8", "int4", "e4m3", "e5m2")


def require_scorer(info: dict[str, Any]) -> None:
    """Refuse a server whose scores would not be the FP32-head target's.

    Raises:
        EnvironmentUnusable: no FP32 LM head, or a KV cache narrower than the compute type.
    """
    if info.get("enable_fp32_lm_head") is not True:
        raise EnvironmentUnusable("The scorer's LM head is not FP32.", "", "Start it with --enable-fp32-lm-head.")
    launch, states = info.get("specpilot_launch") or {}, info.get("internal_states") or [{}]
    caches = {str(item.get("kv_cache_dtype", "auto")).lower() for item in (info, *states)}
    if caches == {"auto"} and launch.get("checkpoint_kv_cache"):
        caches = {f"the checkpoint's {launch['checkpoint_kv_cache']}".lower()}
    narrow = sorted(cache for cache in caches if any(word in cache for word in NARROW_KV))
    if narrow:
        raise EnvironmentUnusable(
            f"The scorer's KV cache is {narrow[0]}.",
            "Margins would not be those of the stock target.",
            "Score with --kv-cache-dtype bfloat16.",
        )


def scores(answer: dict[str, Any], output: Sequence[int], vocab_size: int | None = None) -> list[TokenScore]:
    """One entry per output token, from an answer of `/generate`.

    Args:
        vocab_size: of the target, where it is known.
    Raises:
        ExternalFailed: the answer scores other tokens, fewer, or none.
    """
    count = len(output)
    if not count:
        return []
    try:
        meta = answer["meta_info"]
        token_logprobs, tops = meta["input_token_logprobs"][-count:], meta["input_top_logprobs"][-count:]
        if len(token_logprobs) != count or len(tops) != count:
            raise ValueError(f"{len(token_logprobs)} logprobs for {count} tokens")
        last = None if vocab_size is None else vocab_size - 1
        return [_score(token, entry, top, last) for token, entry, top in zip(output, token_logprobs, tops, strict=True)]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise ExternalFailed("POST /generate gave no usable logprobs.", repr(error)) from None


def _score(token: int, entry: Sequence[Any], top: Sequence[Sequence[Any]], last: int | None) -> TokenScore:
    if int(entry[1]) != token and not (token == last and int(entry[1]) == 0):
        raise ValueError(f"the engine scored token {entry[1]}, not {token}")
    pairs = tuple((int(item[1]), float(item[0])) for item in top)
    own = float(entry[0])
    best = max(own, *(logprob for _, logprob in pairs))
    argmax = min(ident for ident, logprob in (*pairs, (token, own)) if logprob == best)
    return TokenScore(token, own, argmax, best, None, None, pairs)
