"""SpecPilot: finds and keeps lossless speedups of speculative decoding, one deployment at a time."""

__version__ = "0.1.0"
