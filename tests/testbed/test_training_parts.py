"""The parts of the training: the loss without logits, stored features, drafters that begin as the target, Muon."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from testbed import tiny  # noqa: E402
from torch import Tensor  # noqa: E402

from specpilot_cli.testbed.nn import frozen_head  # noqa: E402
from specpilot_cli.testbed.nn.dense import DenseConfig, DenseModel  # noqa: E402
from specpilot_cli.testbed.nn.eagle3 import EagleConfig, EagleHead  # noqa: E402
from specpilot_cli.testbed.nn.features import Live, Stored, described  # noqa: E402
from specpilot_cli.testbed.nn.frozen_head import head_entropy  # noqa: E402
from specpilot_cli.testbed.nn.initial import begin_with, same_shapes  # noqa: E402
from specpilot_cli.testbed.nn.largest import top  # noqa: E402
from specpilot_cli.testbed.nn.muon import Muon, orthogonal  # noqa: E402


def plain_entropy(
    rows: Tensor, head: Tensor, ids: Tensor, shares: Tensor, weights: Tensor, pair: tuple[Tensor, Tensor] | None,
    reach: float,
) -> Tensor:  # fmt: skip
    """The same by automatic differentiation; the chances of `reach` are constants."""
    logits = rows @ head.T + (0 if pair is None else pair[0] @ pair[1].T)
    chances = torch.log_softmax(logits, -1)
    found = chances.gather(-1, ids)
    right = found[..., 0].exp().detach()
    before = torch.cat((torch.ones_like(right[:, :1]), right.cumprod(-1)[:, :-1]), 1)
    return -(found * shares * (weights * (1 - reach + reach * before)).unsqueeze(-1)).sum()


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("reach", [0.0, 0.7])
def test_the_loss_without_logits_is_cross_entropy(paired: bool, reach: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loss and all gradients, with soft labels that name a token twice, over several parts of the rows."""
    monkeypatch.setattr(frozen_head, "ROWS_AT_ONCE", 7)
    torch.manual_seed(0)
    blocks, count, hidden, rank, vocab = 5, 3, 16, 4, 40
    made = [torch.randn(blocks, count, hidden), torch.randn(blocks, count, rank), torch.randn(vocab, rank)]
    head, weights = torch.randn(vocab, hidden), torch.rand(blocks, count)
    ids = torch.randint(vocab, (blocks, count, 3))
    ids[..., 2] = ids[..., 0]
    shares = torch.softmax(torch.randn(blocks, count, 3), -1)
    results = []
    for loss in (head_entropy, plain_entropy):
        rows, left, right = (part.clone().requires_grad_(True) for part in made)
        total = loss(rows, head, ids, shares, weights, (left, right) if paired else None, reach)
        (2 * total).backward()
        results.append((total.detach(), rows.grad, left.grad, right.grad))
    for one, other in zip(*results, strict=True):
        assert (one is None and other is None) or torch.allclose(one, other, rtol=1e-4, atol=1e-4)
    assert paired == (results[0][3] is not None)


def test_stored_features_are_those_made_anew() -> None:
    target = tiny.dense()
    texts = tiny.texts(target, count=5)
    texts.lengths[1] -= 3
    texts.lengths[4] -= 5
    layers = (1, 3)
    stored, live = (kind(target, texts, layers, 4) for kind in (Stored, Live))
    chosen = torch.tensor([4, 0, 1, 4])
    width = int(texts.lengths.max())
    (one, soft), (other, wanted) = stored.batch(chosen, width), live.batch(chosen, width)
    assert soft is not None and wanted is not None
    for at, text in enumerate(chosen.tolist()):
        end = int(texts.lengths[text])
        assert torch.allclose(one[at, :end], other[at, :end], atol=1e-5)
        assert torch.equal(soft[0][at, 1:end], wanted[0][at, 1:end])
        assert torch.allclose(soft[1][at, 1:end], wanted[1][at, 1:end], atol=1e-5)
    assert stored.batch(chosen, width)[0].shape == other.shape


@pytest.mark.parametrize("width", [1280, 1000, 256])
def test_the_largest_are_found_part_by_part(width: int) -> None:
    x = torch.randn(3, 5, width, generator=torch.Generator().manual_seed(0))
    values, places = top(x, 8)
    wanted = x.topk(8, dim=-1)
    assert torch.equal(values, wanted.values) and torch.equal(places, wanted.indices)


def test_soft_labels_stand_at_the_token_they_are_about() -> None:
    """The target writes greedily, so its likeliest token at each place of an answer is the text's."""
    target = tiny.dense()
    texts = tiny.texts(target)
    _, soft = described(target, texts.ids, (1,), 2)
    assert soft is not None
    for row, ids, first, end in zip(soft[0], texts.ids, texts.first.tolist(), texts.lengths.tolist(), strict=True):
        assert torch.equal(row[first:end, 0], ids[first:end])


def test_hard_anchors_follow_the_targets_doubt() -> None:
    """Of equally many sure (q = 1) and open (q = 0.25) tokens the kept ones are as often sure as their weights say."""
    from specpilot_cli.testbed.nn.losses import hard_anchors

    ids = torch.tensor([[5, 7]])
    soft = torch.tensor([[[5, 1], [7, 1]]]), torch.tensor([[[1.0, 0.0], [0.25, 0.75]]])
    draw, kept = torch.Generator().manual_seed(0), []
    for _ in range(400):
        starts = torch.tensor([[0, 1] * 50])
        kept.append(hard_anchors(ids, soft, starts, torch.rand(1, 100, generator=draw), 1, 0.8))
    share = (torch.cat(kept) == 0).float().mean().item()
    # weights 0.2 and 0.8: one in five, within four standard deviations of 400 draws
    assert abs(share - 0.2) < 4 * (0.2 * 0.8 / 400) ** 0.5


def test_a_head_that_begins_as_the_targets_last_layer_computes_it() -> None:
    """EAGLE-3 with zero for what the target has not (the embedding's half of the attention, the other features)."""
    torch.manual_seed(1)
    config = DenseConfig(50, 32, 48, 3, 4, 2, 8)
    target = DenseModel(config).requires_grad_(False)
    for layer in target.model.layers:
        layer.input_layernorm.weight.uniform_(0.5, 2)
    head = EagleHead(EagleConfig(32, 50, (0, 1), 4, 2, 8, 48, rms_norm_eps=config.rms_norm_eps))
    assert same_shapes(head, target)
    begin_with(head, target)
    with torch.no_grad():
        head.fc.weight[:, :32] = 0
        head.fc.weight[:, 32:] = torch.eye(32)
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(head.layers[0].self_attn, name).weight[:, :32] = 0
    ids = torch.randint(50, (2, 9))
    wanted, features = target(ids, (0, 1))
    found = head.unroll(ids, features, target.embedding, 1)[0]
    assert torch.allclose(found, wanted, atol=1e-4)


def test_a_drafter_of_other_shapes_does_not_begin_as_the_target() -> None:
    config = DenseConfig(50, 32, 48, 3, 4, 2, 8)
    head = EagleHead(EagleConfig(32, 50, (0, 1), 4, 2, 8, 64))
    with pytest.raises(ValueError, match="shapes"):
        begin_with(head, DenseModel(config))


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8)])
def test_orthogonal_keeps_the_singular_vectors(shape: tuple[int, int, int]) -> None:
    """Singular values from 0.1 to 1 come out near one: the quintic's fixed range is 0.68 to 1.13."""
    torch.manual_seed(0)
    u, _, v = torch.linalg.svd(torch.randn(shape), full_matrices=False)
    values = torch.linspace(0.1, 1, min(shape[1:]))
    found = orthogonal(u @ torch.diag(values) @ v)
    inner = u.mT @ found @ v.mT
    assert torch.allclose(inner, torch.diag_embed(inner.diagonal(dim1=1, dim2=2)), atol=1e-3)
    assert inner.diagonal(dim1=1, dim2=2).min() > 0.6 and inner.diagonal(dim1=1, dim2=2).max() < 1.2


def test_muon_fits_a_linear_map_and_resumes() -> None:
    torch.manual_seed(0)
    x, wanted = torch.randn(64, 12), torch.randn(6, 12)
    weights = [torch.nn.Parameter(torch.zeros(6, 12)) for _ in range(2)]
    losses = []
    optimizer = Muon(weights, lr=0.2, weight_decay=0.0)
    for step in range(150):
        if step == 60:
            saved, optimizer = optimizer.state_dict(), Muon(weights, lr=0.2, weight_decay=0.0)
            optimizer.load_state_dict(saved)
            assert len(optimizer.state) == 2
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 150)
        optimizer.zero_grad()
        loss = sum(F.mse_loss(x @ w.T, x @ wanted.T) for w in weights)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 1e-2 * losses[0] and torch.equal(weights[0], weights[1])
