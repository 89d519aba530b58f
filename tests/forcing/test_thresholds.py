"""The thresholds file: complete, sourced, closed."""

from __future__ import annotations

import pytest

from specpilot_cli.core.errors import InputUnusable
from specpilot_cli.core.paths import share_dir
from specpilot_cli.forcing.thresholds import FILE_NAME, load_thresholds, parse_thresholds

TEXT = (share_dir("profiles") / FILE_NAME).read_text()


def test_the_papers_values() -> None:
    found = load_thresholds()
    assert (found.rate_limit, found.event_margin_deltas, found.confidence) == (0.005, 2.0, 0.95)
    assert (found.minimum_gain, found.noise_multiple, found.changed_output_gain) == (0.01, 2.0, 0.03)
    assert len(found.as_dict()) == 11


def test_bar() -> None:
    found = load_thresholds()
    assert found.bar(0.001, outputs_changed=False) == pytest.approx(0.012)
    assert found.bar(0.001, outputs_changed=True) == 0.03
    assert found.bar(0.02, outputs_changed=True) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("value = 0.95", "value = 1.5"),
        ("value = 0.95", "value = nan"),
        ("value = 0.95\n", ""),
        ("[confidence]", "[confidense]"),
        ('source = "SpecPilot: detection power is quoted at 0.9"', 'source = ""'),
        ("[confidence]", "[confidence"),
    ],
)
def test_damaged_file(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(InputUnusable):
        parse_thresholds(TEXT.replace(old, new, 1).encode(), "thresholds.toml")
