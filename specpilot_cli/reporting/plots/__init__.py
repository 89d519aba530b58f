"""Artifacts as pictures, one file a kind. Needs matplotlib (the `report` extra)."""
