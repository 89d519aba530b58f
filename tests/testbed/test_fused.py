"""The element-wise parts: compiled they give what they give as written, and a compiler that fails ends nothing."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from testbed import tiny  # noqa: E402
from torch import Tensor  # noqa: E402

from specpilot_cli.testbed.nn import fused  # noqa: E402
from specpilot_cli.testbed.nn.losses import block_loss, eagle_loss  # noqa: E402


def gradients(kind: str, on: bool, rows: int = 5) -> list[Tensor]:
    """Of every parameter of a drafter (or head) in one training step, and the loss."""
    target = tiny.dense()
    texts = tiny.texts(target)
    drafter: Any = tiny.eagle() if kind == "EAGLE3" else tiny.block("DFLASH2" if kind == "DFLASH2" else "DSPARK")
    drafter.requires_grad_(True)
    _, features = target(texts.ids, drafter.config.target_layer_ids)
    tables = target.embedding, target.head
    with fused.compiled("cpu", on):
        if kind == "EAGLE3":
            loss = eagle_loss(drafter, texts.ids, texts.first, texts.lengths, features, *tables, depth=3, decay=0.9)
        else:
            starts = texts.first.unsqueeze(1) + torch.arange(3)
            some = (texts.ids, texts.lengths, features, starts, rows)
            loss = block_loss(drafter, *some, *tables, decay=5.0, unary_share=0.25)
    loss.backward()
    return [loss.detach(), *[p.grad for p in drafter.parameters()]]


@pytest.mark.parametrize("kind", ["DFLASH2", "DSPARK", "EAGLE3"])
def test_flat_rows_give_what_the_modules_give(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path that is compiled on a GPU, with functions that are not compiled: shapes, strides and order are right."""
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(fused, "_ready", {})
    plain = gradients(kind, False)
    assert not fused._ready
    flat = gradients(kind, True)
    assert {"normed", "gated"} <= set(fused._ready)
    assert ("turned" in fused._ready) == (kind == "EAGLE3") and ("convolved" in fused._ready) == (kind == "DFLASH2")
    for one, other in zip(plain, flat, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_compiler_that_fails_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(function: Any) -> Any:
        def fail(*args: Any) -> Any:
            raise RuntimeError("no compiler here")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    monkeypatch.setattr(fused, "_ready", {})
    monkeypatch.setitem(fused._state, "failed", None)
    assert all(torch.equal(a, b) for a, b in zip(gradients("DFLASH2", True), gradients("DFLASH2", False), strict=True))
    assert "no compiler here" in str(fused.failure()) and "fused: off" in capsys.readouterr().out
    with fused.compiled("cpu"):
        assert not fused.active(torch.zeros(1))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_compiled_functions_give_what_they_give_as_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real compiler (a minute or two on a CPU), at two block lengths."""
    monkeypatch.setattr(fused, "_ready", {})
    for kind, rows in (("DFLASH2", 5), ("DFLASH2", 8), ("EAGLE3", 0)):
        for one, other in zip(gradients(kind, False, rows), gradients(kind, True, rows), strict=True):
            assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    assert fused.failure() is None and len(fused._ready) == 5
