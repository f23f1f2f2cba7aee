"""Masks: which rows of the calls under way count, by an argument of the model or by a context.

A mask is copied where its call begins, as the training may change the tensor before the backward.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from threading import get_ident
from types import FrameType
from typing import NamedTuple
from weakref import ref

import torch
from torch import Tensor, nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats._torch import has_storage
from hookstats.arena.arena import Arena
from hookstats.arena.mask import Chain
from hookstats.hooks.dynamo import break_graphs, run_untraced
from hookstats.hooks.inert import Hook
from hookstats.hooks.readable import detour, unreadable, without_torch_function
from hookstats.hooks.traced_masks import TracedMasks
from hookstats.records import reasons
from hookstats.records.alike import did_you_mean
from hookstats.stats.mask import EXPECTED, unfit
from hookstats.stats.warning import warn


class _Begun(NamedTuple):
    """A call or context that has begun."""

    by: ref[object]
    """The model that is called, or the context, which nobody keeps if an interrupt comes where its
    `with` begins or ends."""
    mask: Tensor | None
    """As `MaskOfCalls.now`."""
    thread: int
    """Which one began it."""
    frame: FrameType | None
    """Of a call: what runs as long as it does."""
    traced: Chain | None
    """The calls that it is in, where their graph broke."""


class Masks:
    """The masks of a watch: that of the innermost call or context holds."""

    def __init__(self, arena: Arena, name: str | None) -> None:
        """name: the argument of the models' forward that has the mask; None where none has."""
        self._arena = arena
        self._name = name
        arena.mask.expected = name is not None
        self._begun: list[_Begun] = []
        self._warned = False
        # Of no rows: under it, `coverage` counts every tensor as `unmasked`. Made before any call,
        # since what a transform makes is no plain tensor.
        self._unfit = torch.ones(0, dtype=torch.bool, device="cpu")
        self.traced = TracedMasks(arena, self._warn_once, self._unfit)

    def attach(self, models: Iterable[nn.Module]) -> list[RemovableHandle]:
        """Register the hooks that find the mask among the arguments of a call; before all others.

        `attach_ends` is to follow, after all others. A ScriptModule takes no hooks.
        """
        if self._name is None:
            return []
        return [
            model.register_forward_pre_hook(
                _Begin(self, self._name, place_of_argument(model, self._name)), with_kwargs=True
            )
            for model in models
            if not isinstance(model, torch.jit.ScriptModule)
        ]

    def attach_ends(self, models: Iterable[nn.Module]) -> list[RemovableHandle]:
        """Register the hooks that tell of the ends of calls, by whatever error."""
        if self._name is None:
            return []
        return [
            model.register_forward_hook(_End(self), always_call=True)
            for model in models
            if not isinstance(model, torch.jit.ScriptModule)
        ]

    def within(self, mask: Tensor) -> AbstractContextManager[None]:
        """In this context, rows of calls count as `mask` says.

        Raises:
            ValueError: `mask` is no mask.
        """
        if not isinstance(mask, Tensor):
            raise ValueError(f"mask = {type(mask).__name__}: expected {EXPECTED}")
        if reason := unreadable(mask) or _unfit(mask):
            raise ValueError(f"mask has {reason}: expected {EXPECTED}")
        self._arena.mask.expected = True
        return _Within(self, _copied(mask))

    def begin(self, context: AbstractContextManager[None], mask: Tensor) -> None:
        """A context begins; `mask` is as `MaskOfCalls.now`."""
        self._begin(_Begun(ref(context), mask, get_ident(), None, self._arena.mask.traced))

    def begin_call(self, model: nn.Module, given: object, frame: FrameType) -> None:
        """A call of a model begins, which was `given` a mask; None: it has that of what it is in.

        frame: runs as long as the call does.
        """
        mask = None if given is None else self.of_argument(given)
        one = _Begun(ref(model), mask, get_ident(), frame, self._arena.mask.traced)
        self._begin(one, is_given=given is not None)

    def _begin(self, one: _Begun, *, is_given: bool = True) -> None:
        with self._arena.lock:
            self._forget_ended()
            if not is_given:
                one = one._replace(mask=self._mask_around(one.thread))
            self._begun.append(one)
            self._arena.mask.traced = None
            overlap = self._choose()
        if overlap:
            self._warn_once(overlap)

    def _mask_around(self, thread: int) -> Tensor | None:
        """The mask for calls of a thread: of contexts, those of all threads count."""
        if self._arena.mask.traced is not None:
            return self._arena.mask.traced[0]
        around = (
            one.mask for one in reversed(self._begun) if one.thread == thread or not one.frame
        )
        return next(around, None)

    def step_closed(self) -> None:
        """A step was closed: what an interrupt has ended goes no further."""
        if self._arena.mask.expected:
            with self._arena.lock:
                self._forget_ended()
                self._arena.mask.traced = None
                self._choose()  # an interrupt may have come before it

    def _forget_ended(self) -> None:
        """Forget what ended without telling, as interrupts end calls and contexts."""
        if self._begun:
            running = _running({one.thread for one in self._begun})
            self._begun = [
                one
                for one in self._begun
                if one.by() is not None and (not one.frame or id(one.frame) in running)
            ]

    def end(self, by: object) -> None:
        """This thread's last call or context that began by `by` ends, with those within it."""
        thread = get_ident()
        with self._arena.lock:
            for place in reversed(range(len(self._begun))):
                if self._begun[place].by() is by and self._begun[place].thread == thread:
                    inner = self._begun[place:]
                    self._arena.mask.traced = inner[0].traced
                    self._begun[place:] = [one for one in inner if one.thread != thread]
                    break
            self._choose()

    def _choose(self) -> str:
        """Have the mask that holds now; why none does, as no hook knows which of several threads it
        is part of."""
        calls = {one.thread for one in self._begun if one.frame}
        contexts = {one.thread for one in self._begun if not one.frame}
        overlap = ""
        if len(calls) > 1 and any(one.mask is not None for one in self._begun):
            overlap = "calls on several threads at once"
        elif len(contexts) > 1:
            overlap = "masks of several threads at once"
        if overlap:
            self._arena.mask.set(self._unfit)
        else:
            self._arena.mask.set(self._begun[-1].mask if self._begun else None)
        return overlap

    def of_argument(self, given: object) -> Tensor | None:
        """The mask that a model was given, as `MaskOfCalls.now`.

        Where hooks leave calls out, as in a trace or a transform, this adds no operation to them.
        """
        if not self._arena.recording or detour() is not None:
            return None
        with without_torch_function():
            return self._of_given(given)

    def _of_given(self, given: object) -> Tensor:
        try:
            reason = _unfit(given)
            if reason is None:
                assert isinstance(given, Tensor)
                made = self._unfit if unreadable(given) else _copied(given)
                return self._unfit if unreadable(made) else made  # as under fake tensors
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._warn_once(f"the argument has {reason}, expected {EXPECTED}")
        return self._unfit

    def _warn_once(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            what = "Watch.mask" if self._name is None else f"mask = {self._name!r}"
            warn(f"hookstats: {what}: {why}; all rows of such calls count")


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


def _running(threads: Iterable[int]) -> set[int]:
    """The ids of what runs on threads now."""
    found = set()
    stacks = sys._current_frames()
    for thread in threads:
        frame = stacks.get(thread)
        while frame is not None:
            found.add(id(frame))
            frame = frame.f_back
    return found


def _unfit(given: object) -> str | None:
    """What an argument has that no mask has; None if it is a mask."""
    if not isinstance(given, Tensor):
        return f"type {type(given).__name__}"
    freed = given.numel() and has_storage(given) and not given.untyped_storage().nbytes()
    return unfit(given) or (reasons.NO_STORAGE if freed else None)


def _copied(mask: Tensor) -> Tensor:
    """The mask as `MaskOfCalls` has it. Nothing waits for its device."""
    return (mask.detach() != 0).contiguous()


class _Begin(Hook):
    """Forward pre-hook of a model: finds the mask of the call."""

    __slots__ = ("_masks", "_name", "_place")

    def __init__(self, masks: Masks, name: str, place: int | None) -> None:
        self._masks = masks
        self._name = name
        self._place = place

    def __call__(
        self,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,  # `calls` tells when there are none
    ) -> None:
        if kwargs is None:
            return
        given = kwargs.get(self._name)
        if given is None and self._place is not None and self._place < len(args):
            given = args[self._place]
        if is_dynamo_compiling():
            self._masks.traced.begin_call(given)
        else:
            self._masks.begin_call(module, given, sys._getframe(1))


class _End(Hook):
    """Forward hook of a model, after all others."""

    __slots__ = ("_masks",)

    def __init__(self, masks: Masks) -> None:
        self._masks = masks

    def __call__(self, module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if is_dynamo_compiling():
            self._masks.traced.end_call()
        else:
            self._masks.end(module)


for _hook in (_Begin, _End):
    run_untraced(_hook.__call__)


class _Within(AbstractContextManager[None]):
    """The context of a mask. No generator: dynamo cannot end its graph in one."""

    def __init__(self, masks: Masks, mask: Tensor) -> None:
        self._masks = masks
        self._mask = mask

    def __enter__(self) -> None:
        try:
            self._masks.begin(self, self._mask)
        except BaseException:  # an interrupt: the `with` has not begun
            self._masks.end(self)
            raise

    def __exit__(self, *exc: object) -> None:
        try:
            self._masks.end(self)
        except BaseException:
            self._masks.end(self)
            raise


_WHY = "a mask of hookstats begins or ends"
for _function in (_Within.__enter__, _Within.__exit__):
    break_graphs(_function, _WHY)
