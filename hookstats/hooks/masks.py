"""Masks: which rows of calls count, by an argument of the model or by a context.

A mask is that of a thread: a pre-hook of the model sets it, and a hook that is always called resets
it. It is copied where its call begins, as the training may change the tensor before the backward.

Compiled code has its mask as a tensor. Where the model itself is compiled, the mask is an argument
of the graph and is copied in it; where a part of the model is, or a context has the mask, dynamo
finds the copy as an attribute, and makes it an input of the graph. Calls under way are a chain in
an attribute, whose changes dynamo follows; a graph that breaks leaves it there for its next part.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats._torch import has_storage, is_freed, mark_constant
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.buffers.mask import CurrentMask
from hookstats.hooks.dynamo import break_graphs, run_untraced
from hookstats.hooks.inert import Hook, marked
from hookstats.hooks.readable import detour, is_captured, unreadable, without_torch_function
from hookstats.hooks.traced import hookstats_leaves_out
from hookstats.records import reasons
from hookstats.records.keys import did_you_mean
from hookstats.stats.mask import EXPECTED, unfit
from hookstats.stats.messages import error_text, warn


class Masks:
    """The masks of a watch: that of the innermost call or context of a thread holds."""

    def __init__(self, buffers: DoubleBuffer, name: str | None) -> None:
        """name: the argument of the models' forward that has the mask; None where none has."""
        self.buffers = buffers
        self.key = str(next(_keys))  # constant functions take no objects before torch 2.12
        _masks_by_key[self.key] = self
        self._name = name
        self._warned = False

    def attach(self, models: Iterable[nn.Module]) -> list[RemovableHandle]:
        """Register the hooks that find the mask among the arguments of a call; before all others.

        `attach_ends` is to follow, after all others. A ScriptModule takes no hooks.
        """
        if self._name is None:
            return []
        handles = []
        for model in models:
            if not isinstance(model, torch.jit.ScriptModule):
                begin = _Begin(self, self._name, place_of_argument(model, self._name))
                handles.append(marked(model.register_forward_pre_hook(begin, with_kwargs=True)))
        return handles

    def attach_ends(self, models: Iterable[nn.Module]) -> list[RemovableHandle]:
        """Register the hooks that end the masks of calls, by whatever error."""
        if self._name is None:
            return []
        return [
            marked(model.register_forward_hook(_End(self), always_call=True))
            for model in models
            if not isinstance(model, torch.jit.ScriptModule)
        ]

    def within(self, mask: Tensor) -> AbstractContextManager[None]:
        """In this context, rows of this thread's calls count as `mask` says.

        Raises:
            ValueError: `mask` is no mask.
        """
        if not isinstance(mask, Tensor):
            raise ValueError(f"mask = {type(mask).__name__}: expected {EXPECTED}")
        if reason := unreadable(mask) or _unfit(mask):
            raise ValueError(f"mask has {reason}: expected {EXPECTED}")
        return _Within(self.buffers.mask, _copied(mask))

    def begin_call(self, model: nn.Module, given: object) -> None:
        """A call of a model begins on this thread, which was `given` a mask."""
        mask = self.buffers.mask
        mask.end(model)  # of the call before, if an interrupt ended it: torch calls no hook then
        mask.begin(model, self.of_call(given))

    def of_call(self, given: object) -> Tensor | None:
        """The mask of a call, as `CurrentMask.now`: what the model was given, or if that is None,
        the mask of what the call is in.

        Where hooks leave calls out, as in a trace or a transform, this adds no operation to them.
        """
        if given is None:
            traced = self.buffers.mask.traced
            return self.buffers.mask.now if traced is None else traced[0]
        if not self.buffers.recording or detour() is not None:
            return None
        with without_torch_function():
            return self._of_given(given)

    def _of_given(self, given: object) -> Tensor:
        try:
            reason = _unfit(given)
            if reason is None:
                assert isinstance(given, Tensor)
                unread = unreadable(given) or is_captured(given)
                made = None if unread else _copied(given)
                if made is None or unreadable(made):  # as under fake tensors
                    return self.buffers.mask.mismatch
                return made
        except Exception as error:
            reason = error_text(error)
        self.warn_once(f"the argument has {reason}, expected {EXPECTED}")
        return self.buffers.mask.mismatch

    def warn_once(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            what = "Watch.mask" if self._name is None else f"mask = {self._name!r}"
            warn(f"hookstats: {what}: {why}; all rows of such calls count")

    def begin_traced(self, given: object) -> None:
        """A call of a compiled model begins; dynamo traces this."""
        if not self.buffers.recording or hookstats_leaves_out():
            return
        masks = self.buffers.mask
        mask = masks.in_trace() if given is None else self._of_traced(given)
        masks.traced = (mask, masks.traced)

    def _of_traced(self, given: object) -> Tensor:
        if not isinstance(given, Tensor):
            why = f"type {type(given).__name__}"
        elif type(given).__name__ != "Tensor":
            return self.buffers.mask.mismatch
        else:
            found = unfit(given)
            if found is None:
                return (given.detach() != 0).contiguous()
            why = found
        hookstats_refuses_mask(self.key, why)
        return self.buffers.mask.mismatch

    def end_traced(self) -> None:
        """The call of a compiled model ends; dynamo traces this."""
        if not self.buffers.recording or hookstats_leaves_out():
            return
        hookstats_tells_of_breaks(self.key)
        masks = self.buffers.mask
        if masks.traced is not None:
            masks.traced = masks.traced[1]


_keys = itertools.count()
_masks_by_key: WeakValueDictionary[str, Masks] = WeakValueDictionary()


def hookstats_refuses_mask(key: str, why: str) -> None:
    """Warn once that an argument is no mask; runs while dynamo traces."""
    _masks_by_key[key].warn_once(f"the argument has {why}, expected {EXPECTED}")


def hookstats_tells_of_breaks(key: str) -> None:
    """Warn once that the graph of a call with a mask broke; runs while dynamo traces."""
    masks = _masks_by_key[key]
    traced = masks.buffers.mask.traced  # as it was when the graph began
    if traced is not None and traced[0] is not None:
        masks.warn_once("a graph of compiled code breaks in a call, and parts run uncompiled")


for _function in (hookstats_refuses_mask, hookstats_tells_of_breaks):
    mark_constant(_function)


def place_of_argument(model: nn.Module, name: str) -> int | None:
    """Where the argument `name` is among the positional ones of the model's forward; None where it
    can only be given by name.

    Raises:
        ValueError: the model's forward has no such argument.
    """
    inner = model
    while True:
        parameters = inspect.signature(inner.forward).parameters
        kinds = [parameter.kind for parameter in parameters.values()]
        module = getattr(inner, "module", None)
        if name in parameters or not (
            inspect.Parameter.VAR_POSITIONAL in kinds and isinstance(module, nn.Module)
        ):
            break
        inner = module  # wrappers such as DistributedDataParallel pass their arguments on
    if name not in parameters:
        if inspect.Parameter.VAR_KEYWORD in kinds:
            return None
        raise ValueError(
            f"mask = {name!r}: expected an argument of {type(inner).__name__}.forward, which has "
            f"{', '.join(parameters)}{did_you_mean(name, parameters)}"
        )
    if parameters[name].kind is inspect.Parameter.KEYWORD_ONLY:
        return None
    return list(parameters).index(name)


def _unfit(given: object) -> str | None:
    if not isinstance(given, Tensor):
        return f"type {type(given).__name__}"
    freed = has_storage(given) and is_freed(given)
    return unfit(given) or (reasons.NO_STORAGE if freed else None)


def _copied(mask: Tensor) -> Tensor:
    """The mask as `CurrentMask` has it. Nothing waits for its device."""
    return (mask.detach() != 0).contiguous()


class _Begin(Hook):
    __slots__ = ("_masks", "_name", "_place")

    def __init__(self, masks: Masks, name: str, place: int | None) -> None:
        self._masks = masks
        self._name = name
        self._place = place

    def __call__(
        self,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,  # none: see `Hook`
    ) -> None:
        if kwargs is None:
            return
        given = kwargs.get(self._name)
        if given is None and self._place is not None and self._place < len(args):
            given = args[self._place]
        if is_dynamo_compiling():
            self._masks.begin_traced(given)
        else:
            self._masks.begin_call(module, given)


class _End(Hook):
    """Forward hook of a model, after all others."""

    __slots__ = ("_masks",)

    def __init__(self, masks: Masks) -> None:
        self._masks = masks

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if is_dynamo_compiling():
            self._masks.end_traced()
        else:
            self._masks.buffers.mask.end(module)


for _hook in (_Begin, _End):
    run_untraced(_hook.__call__)


class _Within(AbstractContextManager[None]):
    """The context of a mask. No generator: dynamo cannot end its graph in one."""

    def __init__(self, current: CurrentMask, mask: Tensor) -> None:
        self._current = current
        self._mask = mask

    def __enter__(self) -> None:
        self._current.begin(self, self._mask)

    def __exit__(self, *exc: object) -> None:
        self._current.end(self)


for _method in (_Within.__enter__, _Within.__exit__):
    break_graphs(_method, "a mask of hookstats begins or ends")
