"""RootModules: the watched models: whether one was called in a step, whether they evaluate."""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.inert import KINDS, Hook
from hookstats.hooks.traced import hookstats_leaves_out


class RootModules:
    """The models of a watch, which are not kept alive."""

    __slots__ = ("_models", "called", "skips_evaluation")

    def __init__(self, models: Iterable[nn.Module]) -> None:
        self._models = [weakref.ref(model) for model in models]
        self.called = False
        """Whether a call of a model has begun since this was last set to False."""
        self.skips_evaluation = False
        """Whether the calls of an evaluation are left out, and do not make `called` true."""

    def attach(self) -> list[RemovableHandle]:
        """Register the hooks that tell of calls; a ScriptModule takes none."""
        models = filter(None, [model() for model in self._models])
        return [
            model.register_forward_pre_hook(_CallHook(self))
            for model in models
            if not isinstance(model, torch.jit.ScriptModule)
        ]

    def remove_handed_on(self, buffers: DoubleBuffer) -> None:
        """Remove the hooks that feed `buffers` from modules that took the places of others, as
        torch's conversions for quantization hand hooks on."""
        for model in filter(None, [known() for known in self._models]):
            for module in model.modules():
                for hooks in (module._forward_hooks, module._forward_pre_hooks):
                    for key, hook in list(hooks.items()):
                        python = getattr(hook, "python", hook)  # of a C++ hook
                        is_ours = issubclass(type(hook), tuple(KINDS))
                        if is_ours and getattr(python, "buffers", None) is buffers:
                            del hooks[key]

    def is_evaluation(self) -> bool:
        """Whether a call now is one of an evaluation: gradients are off, and every model is in
        eval mode. Training has either on: fine-tuning in eval mode needs gradients, and where a
        part is frozen the model is in training mode."""
        if torch.is_grad_enabled():
            return False
        return not any(model.training for model in filter(None, [m() for m in self._models]))


class _CallHook(Hook):
    """Forward pre-hook of a model. Dynamo traces its assignment, and repeats it at each call."""

    __slots__ = ("_roots",)

    def __init__(self, roots: RootModules) -> None:
        self._roots = roots

    def __call__(self, module: nn.Module, args: tuple[object, ...]) -> None:
        if is_dynamo_compiling() and hookstats_leaves_out():
            return
        roots = self._roots
        if not roots.skips_evaluation or torch.is_grad_enabled() or module.training:
            roots.called = True


run_untraced(_CallHook.__call__)
