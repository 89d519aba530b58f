"""rows→time: flat while weights are being read anyway, then a slope. Fitted by least squares over the breakpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specpilot_cli.artifacts.profile import RowsFit, RowTime


def fit_rows(points: Sequence[RowTime]) -> RowsFit:
    """Fit t(r) = base + per_row · max(0, r - flat) to the medians, minimising relative squares over every breakpoint.

    Raises:
        ValueError: no point.
    """
    if not points:
        raise ValueError("no row times to fit")
    rows = np.array([p.rows for p in points], dtype=float)
    time = np.array([p.median_ms for p in points])
    fits = [_fit_at(rows, time, flat) for flat in rows]
    base, slope, flat, _ = min(fits, key=lambda f: (f[3], -f[2]))
    residual = np.abs(base + slope * np.maximum(0.0, rows - flat) - time) / time
    return RowsFit(base_ms=base, flat_rows=int(flat), per_row_ms=slope, max_residual=float(residual.max()))


def _fit_at(rows: np.ndarray, time: np.ndarray, flat: float) -> tuple[float, float, float, float]:
    """(base, slope >= 0, flat, sum of squared relative errors) for one breakpoint."""
    design = np.stack([np.ones_like(rows), np.maximum(0.0, rows - flat)], axis=1) / time[:, None]
    (base, slope), *_ = np.linalg.lstsq(design, np.ones_like(time), rcond=None)
    if slope < 0 or not design[:, 1].any():
        base, slope = float(np.sum(1.0 / time) / np.sum(1.0 / time**2)), 0.0  # least squares of base / t against 1
    error = float(np.sum((design @ np.array([base, slope]) - 1.0) ** 2))
    return float(base), float(slope), float(flat), error
