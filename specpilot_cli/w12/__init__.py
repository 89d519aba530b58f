"""Checkpoints in W12: what the format would save, packing, verifying and loading (format: `kernels/w12_pack`)."""

from __future__ import annotations

SKIP = r"embed|lm_head|\brouter\b|\bgate\.weight$"
"""Read by row or kept exact by engines: packing them gains nothing there."""
