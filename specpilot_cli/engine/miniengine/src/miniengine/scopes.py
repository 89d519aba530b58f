"""Profiler ranges around the mixers, so that a trace tells attention's operators from the recurrence's."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from .layers import Attention, GatedDeltaNet

NAMES: dict[type[nn.Module], str] = {Attention: "class:attention", GatedDeltaNet: "class:recurrent"}


def open_scopes(*modules: nn.Module | None) -> ExitStack:
    """Wrap every mixer below `modules` in a `record_function` range until the returned stack is closed."""
    stack = ExitStack()
    for module in (child for parent in modules if parent is not None for child in parent.modules()):
        name = NAMES.get(type(module))
        if name is not None:
            _wrap(module, name, stack)
    return stack


def _wrap(module: nn.Module, name: str, stack: ExitStack) -> None:
    open_ranges: list[Any] = []

    def enter(*_: Any) -> None:
        open_ranges.append(torch.profiler.record_function(name))
        open_ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    stack.callback(module.register_forward_pre_hook(enter).remove)
    stack.callback(module.register_forward_hook(leave, always_call=True).remove)
