"""Checkpoints in W12: what the format would save, packing, verifying and loading (format: `kernels/w12_pack`)."""
