"""Decoding is lossless: whatever the drafter proposes, the output is the target's own greedy text."""

from __future__ import annotations

import pytest
import torch
