"""Artifacts: the JSON files that stages exchange. One envelope, one body per schema, one way in and one way out."""
