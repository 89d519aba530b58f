"""FLOP and bytes of each kernel class of one pass, from the model's shapes: what must be computed and moved.

A weight is read once a pass. Activations count once in and once out of each operator that the engine runs as one
kernel. Weights and activations have 16 bits, unless a shape says otherwise. The recurrent state is read once a request;
a pass that verifies R rows also writes a snapshot after each row, since any of them may be the last accepted one (stock
SGLang, `fused_sigmoid_gating_recurrent.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from specpilot_cli.profiling.model_shape import DraftShape, ModelShape

ITEM = 2
"""Bytes of a bfloat16 or float16 number."""


@dataclass(frozen=True)
class Work:
    """Work of a class in one pass."""

    flop: float = 0.0
    bytes: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(self.flop + other.flop, self.bytes + other.bytes)

    def times(self, count: float) -> Work:
        """The same work `count` times."""
        return Work(self.flop * count, self.bytes * count)


@dataclass(frozen=True)
class Product:
    """A matrix product with a weight of `outputs` × `inputs`."""

    name: str
    outputs: int
    inputs: int

    def work(self, rows: int) -> Work:
        """2·rows·outputs·inputs FLOP; the weight, the input and the result once."""
        moved = self.outputs * self.inputs + rows * (self.outputs + self.inputs)
        return Work(2.0 * rows * self.outputs * self.inputs, float(moved * ITEM))


@dataclass(frozen=True)
class Load:
    """What a pass works on."""

    batch: int
    rows: int
    """Query rows of all requests."""
    kv_tokens: int
    """Keys of all requests."""
    pairs: int
    """Sum over requests of rows × keys."""
    verifies: bool = True
    """Whether snapshots of the recurrent state are written after every row."""


def layer_products(shape: ModelShape, kind: str) -> tuple[Product, ...]:
    """Products of one layer in the order the engine runs them."""
    hidden, queries = shape.hidden, shape.heads * shape.head_dim
    mlp = (Product("gemm_gate_up", 2 * shape.mlp, hidden), Product("gemm_down", hidden, shape.mlp))
    if kind == "gdn":
        values = shape.gdn_value_heads * shape.gdn_value_dim
        # q, k, v and z; the two gates b and a are a product of their own, on another stream at the same time
        mixed, gates = shape.gdn_channels + values, 2 * shape.gdn_value_heads
        given = (Product("gemm_gdn_in", mixed, hidden), Product("gemm_gdn_in", gates, hidden))
        return (*given, Product("gemm_gdn_out", hidden, values), *mlp)
    qkv = queries * (2 if shape.output_gate else 1) + 2 * shape.kv_heads * shape.head_dim
    return (Product("gemm_qkv", qkv, hidden), Product("gemm_o", hidden, queries), *mlp)


def target_products(shape: ModelShape) -> tuple[Product, ...]:
    """Products of a target pass, in order, the LM head last."""
    layers = [product for kind in shape.layers for product in layer_products(shape, kind)]
    return (*layers, Product("lm_head", shape.vocab, shape.hidden))


def summed(products: tuple[Product, ...], rows: int) -> dict[str, Work]:
    """Work by product name."""
    found: dict[str, Work] = {}
    for product in products:
        found[product.name] = found.get(product.name, Work()) + product.work(rows)
    return found


def attention_work(shape: ModelShape, load: Load) -> Work:
    """QKᵀ and PV over all pairs; keys and values once a request, queries in and results out."""
    flop = 4.0 * load.pairs * shape.heads * shape.head_dim
    kv = 2 * load.kv_tokens * shape.kv_heads * shape.head_dim * ITEM
    return Work(flop, float(kv + 2 * load.rows * shape.heads * shape.head_dim * ITEM)).times(shape.full)


def kv_write_work(shape: ModelShape, rows: int) -> Work:
    """Keys and values of every row: read and written."""
    return Work(0.0, float(2 * 2 * rows * shape.kv_heads * shape.head_dim * ITEM)).times(shape.full)


def norm_act_work(shape: ModelShape, rows: int) -> Work:
    """Two norms with a residual (read both, write both), the gated activation, and norm and rotation of q and k."""
    layer = rows * (2 * 4 * shape.hidden + 3 * shape.mlp) * ITEM
    heads = rows * 2 * (shape.heads + shape.kv_heads) * shape.head_dim * ITEM
    gated = rows * 3 * shape.gdn_value_heads * shape.gdn_value_dim * ITEM  # normed result times its gate
    return Work(0.0, float(layer * len(shape.layers) + heads * shape.full + gated * shape.gdn))


def gdn_work(shape: ModelShape, load: Load) -> dict[str, Work]:
    """Convolution, recurrence and commit of all Gated DeltaNet layers.

    Recurrence: 7 FLOP per state number and row (decay, kᵀS, the rank-1 update, qᵀS).
    """
    if not shape.gdn:
        return {}
    state = shape.gdn_state * shape.gdn_state_bytes
    window = shape.gdn_channels * (shape.gdn_taps - 1) * ITEM
    written = load.rows if load.verifies else load.batch
    conv = load.rows * 2 * shape.gdn_channels * ITEM + load.batch * window + written * window
    rows = load.rows * (shape.gdn_channels + shape.gdn_value_heads * shape.gdn_value_dim) * ITEM
    found = {
        "gdn_conv": Work(2.0 * load.rows * shape.gdn_channels * shape.gdn_taps, float(conv)).times(shape.gdn),
        "gdn_recurrence": Work(
            7.0 * load.rows * shape.gdn_state, float(load.batch * state + written * state + rows)
        ).times(shape.gdn),
    }
    if load.verifies:
        found["gdn_commit"] = Work(0.0, float(2 * load.batch * (state + window))).times(shape.gdn)
    return found


def sampling_work(shape: ModelShape, rows: int) -> Work:
    """One read of the logits."""
    return Work(float(rows * shape.vocab), float(rows * shape.vocab * ITEM))


def target_work(shape: ModelShape, load: Load) -> dict[str, Work]:
    """Work of a target pass by class; classes of the phases accept and commit are in `accept_work`, `commit_work`."""
    found = summed(target_products(shape), load.rows)
    found |= {"attention": attention_work(shape, load), "kv_write": kv_write_work(shape, load.rows)}
    found |= {"norm_act": norm_act_work(shape, load.rows)}
    found |= {name: work for name, work in gdn_work(shape, load).items() if name != "gdn_commit"}
    return found


def draft_layer_products(draft: DraftShape) -> tuple[Product, ...]:
    """Products of one layer of the drafter; DFLASH2 projects its convolution kernels before attention and MLP."""
    qkv, o, gate_up, down = layer_products(draft.body, "full")
    if not draft.conv_taps:
        return (qkv, o, gate_up, down)
    groups = draft.body.hidden // draft.conv_group
    kernel = Product("gemm_conv_kernel", 2 * draft.conv_taps * groups, draft.body.hidden)
    return (kernel, qkv, o, kernel, gate_up, down)


def draft_head(draft: DraftShape) -> tuple[Product, ...]:
    """Products after the drafter's layers: the target's LM head, then the selector's projection or the Markov head."""
    head = Product("lm_head", draft.body.vocab, draft.body.hidden)
    if draft.markov_rank:  # W2 · W1[previous token], one position after the other
        return (head, *(Product("gemm_markov", draft.body.vocab, draft.markov_rank),) * draft.block)
    if draft.selector_rank:
        # the hidden state's projection, then each candidate with each of the position before
        pairs = Product("gemm_selector_pairs", draft.selector_top_k, draft.selector_rank)
        return (head, Product("gemm_selector", draft.selector_rank, draft.body.hidden), pairs)
    return (head,)


def draft_products(draft: DraftShape) -> tuple[Product, ...]:
    """Products of a draft pass, in order."""
    return (*draft_layer_products(draft) * len(draft.body.layers), *draft_head(draft))


def draft_conv_work(draft: DraftShape, rows: int) -> Work:
    """DFLASH2's convolutions of the inputs and the outputs of attention and MLP: rows and kernels in, rows out."""
    if not draft.conv_taps:
        return Work()
    kernels = draft.conv_taps * draft.body.hidden // draft.conv_group
    flop = 2.0 * rows * draft.body.hidden * draft.conv_taps
    return Work(flop, float(rows * (2 * draft.body.hidden + kernels) * ITEM)).times(4 * len(draft.body.layers))


def draft_work(draft: DraftShape, load: Load) -> dict[str, Work]:
    """Work of a draft pass by class: the block's rows through the drafter, then the target's LM head."""
    proposing = load.rows if draft.markov_rank else load.rows - load.batch  # DFLASH drops the anchor's row
    found = summed(draft_layer_products(draft) * len(draft.body.layers), load.rows)
    for product in draft_head(draft):
        rows = {"gemm_markov": load.batch, "gemm_selector_pairs": proposing * draft.selector_top_k}.get(
            product.name, proposing
        )
        found[product.name] = found.get(product.name, Work()) + product.work(rows)
    found |= {
        "attention": attention_work(draft.body, load),
        "kv_write": kv_write_work(draft.body, load.rows),
        "norm_act": norm_act_work(draft.body, load.rows),
    }
    if draft.conv_taps:
        found["draft_conv"] = draft_conv_work(draft, load.rows)
    if draft.selector_rank:
        entries = proposing * draft.selector_top_k * draft.selector_rank * 2 * ITEM
        found["selector"] = sampling_work(draft.body, proposing) + Work(0.0, float(entries))
    else:
        found["sampling"] = sampling_work(draft.body, proposing)
    return found


def accept_work(shape: ModelShape, load: Load) -> dict[str, Work]:
    """The target's argmax over every row."""
    return {"sampling": sampling_work(shape, load.rows)}


def commit_work(shape: ModelShape, draft: DraftShape | None, load: Load) -> dict[str, Work]:
    """Recurrent states of the accepted rows, and the drafter's context: features projected, keys and values written."""
    found = {name: work for name, work in gdn_work(shape, load).items() if name == "gdn_commit"}
    if draft is None:
        return found
    body = draft.body
    found["gemm_fc"] = Product("gemm_fc", body.hidden, draft.features * body.hidden).work(load.rows)
    kv = Product("gemm_kv", 2 * body.kv_heads * body.head_dim, body.hidden).work(load.rows)
    found["gemm_kv"] = kv.times(len(body.layers))
    found["kv_write"] = kv_write_work(body, load.rows)
    return found
