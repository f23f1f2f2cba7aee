"""Silence: one warning where training goes on, and nothing of it is recorded."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from hookstats.hooks.dynamo import run_untraced
from hookstats.hooks.steps import parameters_of
from hookstats.stats.messages import warn

_MANY = 20
"""Steps of an optimizer that the watch was not given, or calls of a model, while no step closes."""

_REMEDY = (
    "give watch() the optimizer that steps, call Watch.add_optimizer once it is there, call "
    "Watch.step once per iteration, or give a trainer its callback of hookstats.integrations"
)
_SKIPPED = (
    "no optimizer of the watch stepped: see whether a loss scaler skips each step, as where "
    "activations overflow in fp16, or call Watch.step once per iteration"
)


class Silence:
    """Looks at what a watch does not see: optimizers that it was not given, loops without one,
    modules that a model gets later. It keeps neither models nor optimizers alive, and warns once
    of each.
    """

    def __init__(self, models: Iterable[nn.Module], gradients: Callable[[], int]) -> None:
        """gradients: how many gradients of outputs have come so far."""
        self._models = [weakref.ref(model) for model in models]
        self._names = {name for model in self._alive() for name, _ in model.named_parameters()}
        self._gradients = gradients
        self._own: dict[int, weakref.ref[Optimizer]] = {}  # by id
        self._strangers = weakref.WeakKeyDictionary[Optimizer, bool]()  # whether they train models
        self._groups = 0  # of the watch's optimizers
        self._steps = 0  # of strangers, since a step was closed
        self._calls = 0  # of models, since a step was closed
        self._came = 0  # gradients, by the call in the middle of `_MANY`
        self._has_closed = False  # whether any step was closed
        self._steps_itself = False  # whether an optimizer of the watch stepped since
        self._told: set[str] = set()

    def attach(self) -> list[RemovableHandle]:
        """Have optimizers tell of their steps; warn of a model that another open watch has."""
        models = self._alive()
        if any(model is one for other in _open for model in other._alive() for one in models):
            self._tell(
                "twice",
                "the model is watched already: each watch records it, and takes its time; expected "
                "Watch.close() of the one before",
            )
        _open.add(self)
        return [register_optimizer_step_pre_hook(_StrangerHook(self))]

    def end(self, discarded: int) -> None:
        """The watch is closed. discarded: the tensors of its open step."""
        _open.discard(self)
        if discarded and self._calls > 1 and not self._has_closed and sys.exc_info()[0] is None:
            self._tell_of_none(f"{self._calls} calls of the model")

    def add(self, optimizer: Optimizer) -> None:
        """The watch has an optimizer."""
        self._own[id(optimizer)] = weakref.ref(optimizer)
        self._groups += len(optimizer.param_groups)

    def closed(self) -> None:
        """A step was closed."""
        self._steps = self._calls = 0
        self._has_closed, self._steps_itself = True, False

    def look(self, optimizers: Iterable[Optimizer]) -> None:
        """Look whether the optimizers of the watch have got more parameters."""
        optimizers = list(optimizers)
        groups = sum([len(optimizer.param_groups) for optimizer in optimizers])
        if groups > self._groups:
            with suppress(Exception):  # of a model that cannot name its parameters
                self._look_for_modules(optimizers)
        self._groups = groups

    def note_step(self, optimizer: Optimizer) -> None:
        """An optimizer, any of the process, steps."""
        known = self._own.get(id(optimizer))
        if known is not None and known() is optimizer:
            self._steps_itself = True
            return
        trains = self._strangers.get(optimizer)
        if trains is None:
            of_models = {id(p) for model in self._alive() for p in model.parameters()}
            trains = any(id(p) in of_models for p in parameters_of(optimizer))
            self._strangers[optimizer] = trains
        if not trains:
            return
        self._steps += 1
        if self._steps == _MANY:
            self._tell(
                "silent",
                f"{_MANY} steps of {type(optimizer).__name__}, an optimizer of this model that the "
                f"watch was not given, and no step was closed, so that none is recorded; {_REMEDY}",
            )

    def note_call(self) -> None:
        """A call of a model begins, which no evaluation makes."""
        self._calls += 1
        if self._calls % _MANY == _MANY // 2:
            self._came = self._gradients()
        # A closure may call a model many times in a step.
        if self._calls % _MANY == 0 and not self._steps_itself:
            with suppress(Exception):
                self._look_for_gradients()

    def _look_for_gradients(self) -> None:
        """Warn if gradients of outputs came, and no parameter has any."""
        trained = [p for m in self._alive() for p in m.parameters() if p.requires_grad]
        # Where batches accumulate, gradients stay from one call to the next.
        if all(p.grad is None for p in trained) and self._gradients() - self._came >= _MANY // 4:
            self._tell_of_none(f"{self._calls} calls of the model, with backwards")

    def _tell_of_none(self, what: str) -> None:
        """Warn of what was not recorded, as no step was closed."""
        helps = _SKIPPED if self._own and not self._steps else _REMEDY
        self._tell("silent", f"{what}, and no step was closed, so that none is recorded; {helps}")

    def _look_for_modules(self, optimizers: Iterable[Optimizer]) -> None:
        given = {id(p) for one in optimizers for p in parameters_of(one)}
        new = [
            name
            for model in self._alive()
            for name, parameter in model.named_parameters()
            if name not in self._names and id(parameter) in given
        ]
        if new:
            more = f" and {len(new) - 1} more parameters" if len(new) > 1 else ""
            self._tell(
                "modules",
                f"the optimizer trains {new[0]!r}{more} of modules that came after watch() was "
                "called, and are not recorded; expected Watch.close(), and another watch()",
            )

    def _tell(self, what: str, message: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warn(f"hookstats: {message}")

    def _alive(self) -> list[nn.Module]:
        return [model for model in (known() for known in self._models) if model is not None]


_open = weakref.WeakSet[Silence]()
"""Of the watches that are open."""


class _StrangerHook:
    """Step pre-hook of all optimizers; in compiled code it does nothing."""

    __slots__ = ("_silence",)

    def __init__(self, silence: Silence) -> None:
        self._silence = weakref.ref(silence)

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        if is_dynamo_compiling():
            return
        silence = self._silence()
        if silence is not None:
            silence.note_step(optimizer)


run_untraced(_StrangerHook.__call__)
