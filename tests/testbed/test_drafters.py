"""The drafters against plain, slow readings of the upstream sources, and tau against an engine's loop."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from testbed import tiny  # noqa: E402
from torch import Tensor  # noqa: E402

from specpilot_cli.testbed.nn.acceptance import Texts, block_runs, eagle_runs, tau_of, walk  # noqa: E402
from specpilot_cli.testbed.nn.block_drafter import Algorithm, BlockDrafter  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.losses import block_loss, draw_anchors, eagle_loss  # noqa: E402

ALGORITHMS: tuple[Algorithm, ...] = ("DFLASH2", "DSPARK")


def norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x: Tensor, positions: Tensor, theta: float) -> Tensor:
    """x [rows, heads, D], NeoX halves."""
    half = x.shape[-1] // 2
    angle = positions[:, None].float() * theta ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """q [rows, heads, D], k and v [columns, kv_heads, D]."""
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = torch.einsum("rhd,chd->hrc", q, k) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return torch.einsum("hrc,chd->rhd", scores.softmax(-1), v).flatten(1)


def convolve(x: Tensor, delta: Tensor, base: Tensor, group: int) -> Tensor:
    """One block x [m, hidden], delta [m, taps, groups], base [taps, hidden]: row i reads itself and the rows before."""
    out = torch.zeros_like(x)
    for row in range(len(x)):
        for tap in range(min(len(base), row + 1)):
            out[row] += (base[tap] + delta[row, tap].repeat_interleave(group)) * x[row - tap]
    return out


def sublayer(layer: Any, conv: str, x: Tensor, inner: Any) -> Tensor:
    """With the convolution of that name around it, where there is one."""
    module = getattr(layer, conv)
    if module is None:
        result: Tensor = inner(x)
        return result
    delta = module.kernel_projection(x).reshape(len(x), 2, module.taps, -1)
    inside = inner(convolve(x, delta[:, 0], module.base_kernel[0], module.group))
    return convolve(inside, delta[:, 1], module.base_kernel[1], module.group)


def plain_block(drafter: BlockDrafter, embedding: Tensor, features: Tensor, anchor: int, rows: int) -> Tensor:
    """One block behind features [S, K * hidden] of one sequence; normed rows [m, hidden]."""
    c, start = drafter.config, len(features)
    context = norm(features @ drafter.fc.weight.T, drafter.hidden_norm.weight)
    ids = torch.tensor([anchor] + [c.mask_token_id] * (rows - 1))
    places, before = start + torch.arange(rows), torch.arange(start)
    x = embedding[ids]
    for layer in drafter.layers:
        attention = layer.self_attn

        def heads(y: Tensor, name: str, attention: Any = attention) -> Tensor:
            made: Tensor = (y @ getattr(attention, name).weight.T).view(len(y), -1, c.head_dim)
            return made

        def mixed(y: Tensor, attention: Any = attention, heads: Any = heads) -> Tensor:
            q = rope(norm(heads(y, "q_proj"), attention.q_norm.weight), places, c.rope_theta)
            k = rope(norm(heads(y, "k_proj"), attention.k_norm.weight), places, c.rope_theta)
            old = rope(norm(heads(context, "k_proj"), attention.k_norm.weight), before, c.rope_theta)
            values = torch.cat((heads(context, "v_proj"), heads(y, "v_proj")))
            out: Tensor = attend(q, torch.cat((old, k)), values) @ attention.o_proj.weight.T
            return out

        x = x + sublayer(layer, "attention_conv", norm(x, layer.input_layernorm.weight), mixed)
        x = x + sublayer(layer, "mlp_conv", norm(x, layer.post_attention_layernorm.weight), layer.mlp)
    return norm(x, drafter.norm.weight)


def plain_proposals(drafter: BlockDrafter, rows: Tensor, anchor: int, head: Tensor) -> list[int]:
    """The greedy walk over the lattice of `srt/models/dflash.py`, or the Markov loop of `srt/models/dspark.py`."""
    found, previous = [], anchor
    for row in rows[drafter.config.first_row :]:
        unary = head @ row
        if drafter.config.algorithm == "DFLASH2":
            s = drafter.candidate_selector
            left = s.predecessor_codebook[previous] * (s.hidden_projection.weight @ row)
            ids = unary.topk(drafter.config.top_k).indices
            previous = int(ids[(unary[ids] + s.successor_codebook[ids] @ left).argmax()])
        else:
            m = drafter.markov_head
            previous = int((unary + m.markov_w2.weight @ m.markov_w1.weight[previous]).argmax())
        found.append(previous)
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("rows", [5, 8])
def test_blocks_side_by_side_are_the_plain_block(algorithm: Algorithm, rows: int) -> None:
    target, drafter = tiny.dense(), tiny.block(algorithm)
    ids = torch.randint(0, tiny.VOCAB - 1, (2, 30))
    _, features = target(ids, drafter.config.target_layer_ids)
    starts = torch.tensor([[1, 7, 29], [4, 4, 20]])
    anchors = ids[torch.arange(2)[:, None], starts]
    found = drafter(target.embedding, anchors, starts, rows, drafter.context(features))
    proposed = drafter.propose(found[:, :, drafter.config.first_row :].flatten(0, 1), anchors.flatten(), target.head)
    for text in range(2):
        for at in range(3):
            start = int(starts[text, at])
            wanted = plain_block(drafter, target.embedding, features[text, :start], int(ids[text, start]), rows)
            assert tiny.close(found[text, at], wanted)
            walked = plain_proposals(drafter, wanted, int(ids[text, start]), target.head)
            assert proposed[3 * text + at].tolist() == walked


@pytest.mark.parametrize("kind", [*ALGORITHMS, "EAGLE3"])
def test_the_whole_of_training_and_evaluation_runs_in_bfloat16(kind: str) -> None:
    """As on a GPU: target in BF16, drafter in float32 under autocast."""
    target = tiny.dense().bfloat16()
    target.cos, target.sin = target.cos.float(), target.sin.float()
    texts = tiny.texts(target)
    drafter = tiny.eagle() if kind == "EAGLE3" else tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
    drafter.requires_grad_(True)
    _, features = target(texts.ids, drafter.config.target_layer_ids)
    tables = target.embedding, target.head
    with torch.autocast("cpu", dtype=torch.bfloat16):
        if isinstance(drafter, EagleHead):
            loss = eagle_loss(drafter, texts.ids, texts.first, texts.lengths, features, *tables, depth=3, decay=0.9)
        else:
            starts = draw_anchors(texts.first, texts.lengths - 2, 4, torch.Generator().manual_seed(0))
            some = (texts.ids, texts.lengths, features, starts, 5)
            loss = block_loss(drafter, *some, *tables, decay=5.0, unary_share=0.25)
        found = tau_of(drafter, target, texts, 4)
    loss.backward()
    assert loss.isfinite() and found.steps > 0
    assert all(p.grad is not None and p.grad.isfinite().all() for p in drafter.parameters())


def plain_eagle(head: EagleHead, embedding: Tensor, ids: Tensor, features: Tensor, depth: int) -> list[int]:
    """A chain drafted as an engine does, token by token, behind ids [n + 1] with features [n, K * hidden]."""
    layer, c = head.layers[0], head.config
    fed = features @ head.fc.weight.T
    tokens, drafts = ids[1:], []
    keys = values = torch.zeros(0, c.num_key_value_heads, c.head_dim)
    for step in range(depth):
        new = slice(0, len(fed)) if step == 0 else slice(len(fed) - 1, len(fed))
        places = torch.arange(len(fed))[new]
        both = torch.cat(
            (norm(embedding[tokens[new]], layer.input_layernorm.weight), norm(fed[new], layer.hidden_norm.weight)), -1
        )
        a = layer.self_attn
        q, k, v = ((both @ p.weight.T).view(len(both), -1, c.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
        keys, values = torch.cat((keys, rope(k, places, c.rope_theta))), torch.cat((values, v))
        mask = torch.arange(len(keys))[None] <= places[:, None]
        x = fed[new] + attend(rope(q, places, c.rope_theta), keys, values, mask) @ a.o_proj.weight.T
        x = x + layer.mlp(norm(x, layer.post_attention_layernorm.weight))
        drafts.append(int((embedding @ norm(x[-1], head.norm.weight)).argmax()))
        fed = torch.cat((fed, x[-1:]))
        tokens = torch.cat((tokens, torch.tensor(drafts[-1:])))
    return drafts


def test_the_unrolled_head_is_the_chain_that_an_engine_drafts() -> None:
    """Along the engine's own drafts (so that every depth is compared, right or wrong)."""
    target, head = tiny.dense(), tiny.eagle()
    prompt = torch.randint(0, tiny.VOCAB - 1, (1, 12))
    _, features = target(prompt[:, :-1], head.config.target_layer_ids)
    drafts = plain_eagle(head, target.embedding, prompt[0], features[0], 4)
    ids = torch.cat((prompt, torch.tensor([drafts])), 1)
    beyond = torch.cat((features, features.new_zeros(1, 4, features.shape[-1])), 1)
    outputs = head.unroll(ids[:, 1:], beyond, target.embedding, 4)
    found = [int((target.embedding @ outputs[k][0, 10 + k]).argmax()) for k in range(4)]
    assert found == drafts


def engine_loop(propose: Any, texts: Texts, width: int) -> tuple[int, int]:
    """Steps and accepted drafts of a chain-verifying engine, over steps that lie wholly inside the texts."""
    steps = accepted = 0
    for ids, first, end in zip(texts.ids, texts.first.tolist(), texts.lengths.tolist(), strict=True):
        at = first
        while at + width < end:
            drafts, run = propose(ids, at), 0
            while run < width and drafts[run] == int(ids[at + 1 + run]):
                run += 1
            steps, accepted, at = steps + 1, accepted + run, at + run + 1
    return steps, accepted


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_tau_is_what_an_engines_loop_counts(algorithm: Algorithm) -> None:
    target, drafter = tiny.dense(), tiny.block(algorithm)
    texts = tiny.texts(target)

    def propose(ids: Tensor, at: int) -> list[int]:
        _, features = target(ids[None, :at], drafter.config.target_layer_ids)
        rows = plain_block(drafter, target.embedding, features[0], int(ids[at]), 6)
        return plain_proposals(drafter, rows, int(ids[at]), target.head)

    found = tau_of(drafter, target, texts, 6, batch=2)
    assert (found.steps, found.accepted) == engine_loop(propose, texts, drafter.config.proposals(6))


def test_tau_of_the_eagle_head_is_what_an_engines_loop_counts() -> None:
    target, head = tiny.dense(), tiny.eagle()
    texts = tiny.texts(target)

    def propose(ids: Tensor, at: int) -> list[int]:
        _, features = target(ids[None, :at], head.config.target_layer_ids)
        return plain_eagle(head, target.embedding, ids[: at + 1], features[0], 3)

    found = tau_of(head, target, texts, 3, batch=2)
    assert (found.steps, found.accepted) == engine_loop(propose, texts, 3)


def test_runs_that_are_known_are_counted() -> None:
    texts = Texts(torch.zeros(2, 12, dtype=torch.long), torch.tensor([2, 3]), torch.tensor([12, 8]))
    runs = [[3] * 12, [0] * 12]
    found = walk(runs, texts, 3)  # first: 2, 6 (10 + 3 reaches beyond); second: 3, 4
    assert (found.steps, found.accepted) == (4, 6) and found.tau == 2.5
    assert walk(runs, texts, 12).tau == 1.0


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "EAGLE3"])
def test_training_on_one_text_makes_the_drafter_right_about_it(algorithm: str) -> None:
    """The losses ask for what the acceptance counts: learning a text by heart gives the longest runs there."""
    target = tiny.dense()
    texts = tiny.texts(target, count=2, new=40)
    drafter = tiny.eagle() if algorithm == "EAGLE3" else tiny.block("DFLASH2" if algorithm == "DFLASH2" else "DSPARK")
    drafter.requires_grad_(True)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=5e-3)
    _, features = target(texts.ids, drafter.config.target_layer_ids)
    draw = torch.Generator().manual_seed(0)
    for _ in range(150):
        if isinstance(drafter, EagleHead):
            loss = eagle_loss(
                drafter, texts.ids, texts.first, texts.lengths, features, target.embedding, target.head,
                depth=3, decay=0.9,
            )  # fmt: skip
        else:
            starts = draw_anchors(texts.first, texts.lengths - 2, 8, draw)
            loss = block_loss(
                drafter, texts.ids, texts.lengths, features, starts, 5, target.embedding, target.head,
                decay=5.0, unary_share=0.25,
            )  # fmt: skip
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    width = 3 if isinstance(drafter, EagleHead) else drafter.config.proposals(5)
    runs = (
        eagle_runs(drafter, target, texts, 3)
        if isinstance(drafter, EagleHead)
        else block_runs(drafter, target, texts, 5)
    )
    inside = runs[:, 5 : 45 - width - 1]
    assert float(inside.float().mean()) > 0.9 * width


def test_anchors_stay_inside_the_answer() -> None:
    first, last = torch.tensor([3, 10]), torch.tensor([3, 40])
    drawn = draw_anchors(first, last, 500, torch.Generator().manual_seed(1))
    assert drawn[0].unique().tolist() == [3]
    assert drawn[1].unique().tolist() == list(range(10, 41))
    few = draw_anchors(first, last, 31, torch.Generator().manual_seed(1))
    assert sorted(few[1].tolist()) == list(range(10, 41)) != few[1].tolist()
