"""First difference of two JSON values; floats may differ in their last digits (another libm or scipy)."""

from __future__ import annotations

import math

from pydantic import BaseModel, JsonValue

RELATIVE, ABSOLUTE = 1e-9, 1e-12


def difference(left: JsonValue, right: JsonValue, where: str = "") -> str | None:
    """Path of the first place at which two values differ, such as `body.gain.low`; None where they agree."""
    if isinstance(left, dict) and isinstance(right, dict):
        for key in sorted(left.keys() | right.keys()):
            inner = f"{where}.{key}" if where else key
            if key not in left or key not in right:
                return inner
            if (found := difference(left[key], right[key], inner)) is not None:
                return found
        return None
    if isinstance(left, list) and isinstance(right, list):
        if len(left) != len(right):
            return where
        pairs = (difference(a, b, f"{where}[{i}]") for i, (a, b) in enumerate(zip(left, right, strict=True)))
        return next((found for found in pairs if found is not None), None)
    return None if _same(left, right) else where


def _same(left: JsonValue, right: JsonValue) -> bool:
    numbers = (int, float)
    if isinstance(left, bool) or isinstance(right, bool) or not isinstance(left, numbers):
        return type(left) is type(right) and left == right
    return isinstance(right, numbers) and math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def model_difference(left: BaseModel, right: BaseModel, where: str) -> str | None:
    """`difference` of two records."""
    return difference(left.model_dump(mode="json", by_alias=True), right.model_dump(mode="json", by_alias=True), where)
