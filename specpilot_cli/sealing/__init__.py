"""Sealing: from paired runs and forced outputs to one signed statement, and back to the evidence."""
