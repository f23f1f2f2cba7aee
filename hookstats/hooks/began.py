"""Began: whether a model was called, told by a hook that compiled code runs, too."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.inert import Hook


class Began:
    """Whether a call of a model has begun since `value` was last set to False."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = False

    def attach(self, model: nn.Module) -> list[RemovableHandle]:
        """Register the hook with a model; a ScriptModule takes none."""
        if isinstance(model, torch.jit.ScriptModule):
            return []
        return [model.register_forward_pre_hook(_BeganHook(self))]


class _BeganHook(Hook):
    """Forward pre-hook of a model. Dynamo traces its assignment, and repeats it at each call."""

    __slots__ = ("_began",)

    def __init__(self, began: Began) -> None:
        self._began = began

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        self._began.value = True


run_untraced(_BeganHook.__call__)
