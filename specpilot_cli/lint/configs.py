"""Checks on the two config.json files."""

from __future__ import annotations

from collections.abc import Iterator

from specpilot_cli.lint.finding import Finding
from specpilot_cli.lint.pair import Pair, as_int

NO_DFLASH_HOOK = ("Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen2_5_VLForConditionalGeneration")
"""Targets without `set_dflash_layers_to_capture` that a Qwen drafter might be given."""
LAST_LAYER_KEPT = ("gemma4",)
"""Model types whose last layer can be captured (`models/gemma4_causal.py:1031-1034`)."""


def hidden_size(pair: Pair) -> Iterator[Finding]:
    """The drafter works on the target's embedding, features and LM head."""
    ours, theirs = pair.drafter.whole("hidden_size"), pair.target.whole("hidden_size")
    if pair.parallel and ours and theirs and ours != theirs:
        yield Finding(
            "hidden-size",
            f"The drafter's hidden_size is {ours}, the target's {theirs}.",
            "Embedding, LM head and context features are the target's.",
            "Use the drafter that was trained for this target.",
            "models/dflash.py:709",
        )


def vocabulary(pair: Pair) -> Iterator[Finding]:
    """DFLASH2's codebooks and DSPARK's Markov head are indexed by the target's token ids."""
    ours, theirs = pair.drafter.whole("vocab_size"), pair.target.whole("vocab_size")
    if pair.kind in ("DFLASH2", "DSPARK") and ours and theirs and ours != theirs:
        yield Finding(
            "vocabulary",
            f"The drafter's vocab_size is {ours}, the target's {theirs}.",
            "Codebooks and Markov head are indexed by the target's token ids.",
            "Use the drafter that was trained for this target.",
            "models/dspark.py:373" if pair.kind == "DSPARK" else "models/dflash.py:1023",
        )


def capture_hook(pair: Pair) -> Iterator[Finding]:
    """Whether the target can hand out the hidden states of its layers."""
    names = pair.target.architectures
    if pair.parallel and any(name in NO_DFLASH_HOOK for name in names):
        yield Finding(
            "capture-hook",
            f"{names[0]} has no hook for DFLASH or DSPARK drafters.",
            "It never sets set_dflash_layers_to_capture.",
            "Take EAGLE3 for this target (it has that hook), or a Qwen3 target.",
            "model_executor/model_runner_components/spec_aux_hidden_state.py:128-211",
        )
    if "EAGLE3" in (pair.kind, pair.algorithm) and any(name.startswith("Qwen3_5") for name in names):
        yield Finding(
            "capture-hook",
            f"{names[0]} has no hook for EAGLE3 drafters.",
            "models/qwen3_5.py never defines set_eagle3_layers_to_capture.",
            "Use DFLASH, DSPARK or the model's own MTP head (NEXTN).",
            "models/qwen3_5.py:1736",
        )


def capture_layers(pair: Pair) -> Iterator[Finding]:
    """Ids of the captured layers against the target's depth."""
    layers = (pair.target.whole("num_hidden_layers") or 0) * (pair.target.whole("num_loops") or 1)
    if not pair.parallel or not layers:
        return
    told = as_int(pair.nested("num_target_layers"))
    if told is not None and told != layers:
        yield Finding(
            "capture-layers",
            f"The drafter was trained on {told} target layers, the target has {layers}.",
            "Its layer ids point at other layers; the engine only warns.",
            "Use the drafter that was trained for this target.",
            "model_executor/model_runner_components/spec_aux_hidden_state.py:128-211",
        )
    ids = pair.nested("target_layer_ids")
    if ids is None:
        yield Finding(
            "capture-layers",
            "The drafter names no target_layer_ids.",
            "The engine then spreads them evenly, whatever the drafter was trained on.",
            "Write the training's ids into dflash_config.",
            "speculative/dflash_utils.py:357",
        )
    else:
        yield from _ids(pair, ids, layers)


def _ids(pair: Pair, ids: object, layers: int) -> Iterator[Finding]:
    numbers = [as_int(item) for item in ids] if isinstance(ids, list) else [None]
    whole = [number for number in numbers if number is not None]
    if len(whole) != len(numbers) or not whole or min(whole) < 0 or max(whole) >= layers:
        yield _id_finding(f"target_layer_ids {ids} are not layers 0 to {layers - 1}.", "There is no such layer.")
        return
    if sorted(set(whole)) != whole:
        yield _id_finding(f"target_layer_ids {ids} do not rise.", "Features come in layer order, each once.")
    kind = str(pair.target.text.get("model_type", ""))
    if layers - 1 in whole and not kind.startswith(LAST_LAYER_KEPT):
        yield _id_finding(
            f"target_layer_ids has the last layer, {layers - 1}.",
            "The capture runs before the next layer: the last one's output is never taken, fc gets too few features.",
        )


def _id_finding(fact: str, why: str) -> Finding:
    return Finding("capture-layers", fact, why, "Correct the ids to the training's.", "models/qwen3.py:713-715")


def mask_token(pair: Pair) -> Iterator[Finding]:
    """The token that fills the block before it is drafted."""
    if not pair.parallel:
        return
    given, vocab = as_int(pair.nested("mask_token_id")), pair.target.whole("vocab_size")
    token = str(pair.nested("mask_token") or "<|MASK|>")
    if given is not None:
        if given < 0 or (vocab and given >= vocab):
            yield _mask(
                f"mask_token_id {given} is not in the target's vocabulary of {vocab}.", "It indexes the embedding."
            )
    elif pair.kind == "DSPARK":
        yield _mask(
            "The drafter has no mask_token_id.", "DSPARK requires it.", "dspark_components/dspark_config.py:119"
        )
    elif pair.given("--skip-tokenizer-init"):
        yield _mask("The drafter has no mask_token_id.", "With --skip-tokenizer-init nothing can look the token up.")
    elif pair.target.tokens is not None and token not in pair.target.tokens:
        yield _mask(
            f"The drafter has no mask_token_id, and the target's tokenizer has no added token {token}.",
            "The engine then adds it, with an id that the drafter was not trained on.",
        )


def _mask(fact: str, why: str, source: str = "dflash_worker_v2.py:1278") -> Finding:
    return Finding(
        "mask-token", fact, why, "Write the training's mask_token_id into config.json.", f"speculative/{source}"
    )


def drafter_config(pair: Pair) -> Iterator[Finding]:
    """Keys that count only together or only inside dflash_config, and an activation that is not there."""
    if not pair.parallel:
        return
    for first, second in (("conv_kernel_size", "conv_group_size"), ("selector_rank", "selector_top_k")):
        outside = [key for key in (first, second) if pair.inner(key) is None and key in pair.drafter.config]
        if outside:
            yield _config(f"{' and '.join(outside)} outside of dflash_config.", "There the engine does not look.")
        elif (pair.inner(first) is None) != (pair.inner(second) is None):
            yield _config(f"Only one of {first} and {second} in dflash_config.", "They count together.")
    if pair.kind == "DFLASH2" and not pair.inner("selector_rank"):
        yield _config("A DFlash2 drafter without a selector_rank in dflash_config.", "No candidate selector is built.")
    activation = pair.drafter.text.get("hidden_act", "silu")
    if activation != "silu":
        yield _config(f"The drafter's hidden_act is {activation}.", "Its MLP is built with SiLU alone.")


def _config(fact: str, why: str) -> Finding:
    remedy = "Take the config.json that was saved with the weights."
    return Finding("drafter-config", fact, why, remedy, "speculative/dflash_utils.py:597-822")


def context(pair: Pair) -> Iterator[Finding]:
    """Positions that the drafter never saw."""
    served = pair.number("--context-length") or pair.target.whole("max_position_embeddings")
    trained = pair.drafter.whole("max_position_embeddings")
    if pair.parallel and served and trained and served > trained:
        yield Finding(
            "context",
            f"The server takes {served} tokens of context, the drafter was made for {trained}.",
            "Its rotary embedding is built for that many positions, and nothing stops longer requests.",
            f"Serve with --context-length {trained}, or watch τ by length.",
            "models/dflash.py:207",
        )
