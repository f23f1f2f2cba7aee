"""The hooks of modules: thin callables that feed sites.

A hook returns nothing, raises nothing and holds no tensor with values. It first asks whether its
buffers is recording, and calls of the hook's phase: that is its whole cost otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling, is_exporting

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.gradients import why_no_gradient
from hookstats.hooks.inert import KINDS, Hook
from hookstats.hooks.leaves import Leaf, argument_leaves, leaves
from hookstats.hooks.readable import detour, is_captured, own_dispatch
from hookstats.hooks.sites import Site
from hookstats.hooks.traced import TracedHook, has_operators
from hookstats.hooks.widths import Sites
from hookstats.kernels import native
from hookstats.records import reasons


class ModuleHook(Hook):
    """Accumulates the tensors of one module's calls, and has their gradients accumulated.

    The gradient of an input is the total gradient, over all uses of the tensor in the model.
    """

    __slots__ = ("buffers", "gradients", "of_inputs", "phase", "traced", "values")

    def __init__(
        self,
        buffers: DoubleBuffer,
        values: Sites | None,
        gradients: Sites | None,
        phase: int = 0,
        *,
        of_inputs: bool,
    ) -> None:
        """of_inputs: it is a forward pre-hook with keyword arguments, for inputs; else a forward
        hook, for outputs."""
        self.buffers = buffers
        self.of_inputs = of_inputs
        self.values = values
        self.gradients = gradients
        self.phase = phase
        self.traced = TracedHook(buffers, values, gradients, phase)

    def __call__(self, module: nn.Module, args: tuple[object, ...], *rest: Any) -> None:
        buffers = self.buffers
        due = has_operators(buffers) if is_dynamo_compiling() else buffers.recording
        if not (due and buffers.phase == self.phase):
            return
        if self.of_inputs:
            found = argument_leaves(args, rest[0] if rest else {})  # see `Hook`
        else:
            found = leaves(rest[0])
        if is_dynamo_compiling():
            self.traced.observe(module, found)
        else:
            with buffers.lock, buffers.guard, own_dispatch():
                self._observe(found)

    def _observe(self, found: Iterable[Leaf]) -> None:
        """Count and accumulate the tensors of a call, and await their gradients."""
        values, gradients = self.values, self.gradients
        is_evaluation = self.phase == 0 and self.buffers.is_evaluation()
        reason = detour() or (reasons.EVALUATION if is_evaluation else None)
        empty = True
        try:
            for path, tensor in found:
                empty = False
                if values is not None:
                    site = values[path].at(tensor)
                    if reason is None:
                        site.observe(tensor)
                    else:
                        site.counts.skip(reason)
                if gradients is not None:
                    _await_gradient(gradients[path].at(tensor), tensor, reason)
            if empty:
                self._skip(reasons.NO_TENSOR)
        except Exception as error:  # a container of the user raised it
            self._skip(reasons.DISABLED, error)

    def _skip(self, reason: str, error: Exception | None = None) -> None:
        for sites in (self.values, self.gradients):
            if sites is not None:
                site = sites[""].first
                if error is not None:
                    site.disable(error)
                site.counts.skip(reason)


run_untraced(ModuleHook.__call__)


def _await_gradient(site: Site, tensor: Tensor, reason: str | None) -> None:
    """Register the hooks that accumulate the gradient of `tensor`, or count why not."""
    try:
        if reason is None and not is_exporting():  # whose sizes are symbols, not to be compared
            site.note_sharding(tensor)
        reason = reason or why_no_gradient(tensor)
        if reason is None and site.counts.disabled:
            reason = reasons.DISABLED
        if reason is None and is_captured(tensor):
            reason = site.await_in_replays(tensor)
        if reason is None:
            if site.native is not None and native.hooks is not None:
                reason = native.hooks.await_gradient(site.native, tensor)
            else:
                site.await_gradient(tensor)
    except Exception as error:
        reason = site.disable(error)
    if reason is None:
        site.counts.missing += 1
    else:
        site.counts.skip(reason)


def fastest(hook: ModuleHook) -> Callable[..., Any]:
    """The callable that does what `hook` does: the C++ hook for it, or `hook` itself."""
    buffers = hook.buffers.native
    if native.hooks is None or buffers is None:
        return hook
    about = hook.values, hook.gradients, hook.phase, hook.of_inputs
    front = native.hooks.ModuleHook(buffers, hook, *about)
    front.python = hook
    return cast(Callable[..., Any], front)


def _as_traced(self: Any, *args: Any) -> None:
    self.python(*args)


if native.hooks is not None:
    KINDS.append(native.hooks.ModuleHook)
    native.hooks.ModuleHook.__reduce__ = Hook.__reduce__
    native.hooks.set_traced(native.hooks.ModuleHook, _as_traced)
