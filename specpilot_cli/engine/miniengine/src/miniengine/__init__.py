"""miniengine: a small plain PyTorch engine with speculative decoding by parallel drafters."""

__version__ = "1.0.0"
