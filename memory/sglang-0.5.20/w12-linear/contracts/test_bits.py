"""The tree's own codec keeps every bit, as far as torch alone can show it; the engine around it is not imported."""

import importlib

import torch

codec = importlib.import_module("sglang.srt.layers.quantization.w12.torch_codec")
prepare = importlib.import_module("sglang.srt.layers.quantization.w12.prepare")


def every_pattern(columns: int) -> torch.Tensor:
    """All 65,536 BF16 patterns: zeros, denormals, infinities and NaNs among them."""
    return torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).view(-1, columns)


def weights(rows: int, columns: int) -> torch.Tensor:
    """Gaussian weights with some escapes."""
    made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 0.02
    made[::7, ::11] = 0.0
    made[::5, 3] = 1e-20
    return made.bfloat16()


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Bit for bit."""
    return torch.equal(one.view(torch.int16), two.view(torch.int16))


def test_what_the_kernels_read_gives_back_every_bit() -> None:
    for weight in (every_pattern(256), weights(384, 512), weights(130, 72)):
        packed = codec.pack(weight)
        assert same(codec.unpack(packed), weight)
        assert same(prepare.restore(prepare.prepare(packed)), weight)


def test_twelve_bits_and_little_more() -> None:
    weight = (torch.randn(1024, 4096, generator=torch.Generator().manual_seed(0)) * 0.02).bfloat16()
    assert codec.pack(weight).bits_per_weight < 12.05
