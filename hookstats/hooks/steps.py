"""Optimizers, StepHook: when the optimizers of a watch step, and when a step is over."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from torch import Tensor
from torch.optim import Optimizer

from hookstats._torch import makes_optimizer_state
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.after_step import AfterStep
from hookstats.hooks.dynamo import break_graphs
from hookstats.hooks.inert import Hook
from hookstats.hooks.parameters import Parameters
from hookstats.hooks.root_modules import RootModules
from hookstats.hooks.step_sample import StepSample
from hookstats.stats.messages import warn

if TYPE_CHECKING:
    from hookstats import _hooks

_OPEN_FOR = 200  # steps of an optimizer, where no step was closed: GANs have fewer for one
_STOPPED = 20  # the same where steps were, of which each had `_TIMES` fewer
_TIMES = 10


def parameters_of(optimizer: Optimizer) -> Iterator[Tensor]:
    """The parameters in all groups of an optimizer."""
    return chain.from_iterable(group["params"] for group in optimizer.param_groups)


class Optimizers:
    """The optimizers of a watch, held weakly, and which of them stepped in the open step.

    All of them step in a step, unless one steps again and the models of the others were not called
    in between, as where layers are trained one after the other: then that one closes steps alone.

    In a backward, optimizers may step on several threads: `note` is called under a lock.
    """

    def __init__(self, roots: RootModules) -> None:
        self._roots = roots
        self._known: list[weakref.ref[Optimizer]] = []
        self.are_several = False
        self._models: dict[int, frozenset[int]] = {}  # places of models, by optimizer
        self._stepped = Counter[int]()  # how often, in the open step; of one alone, nothing
        self._alone = False  # whether an optimizer closed steps alone before
        self._most = 0  # the most steps of any of them in one closed step
        self._told = False

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Optimizer]:
        return filter(None, [known() for known in self._known])

    def add(self, optimizer: Optimizer) -> None:
        self._models[len(self._known)] = self._roots.of(optimizer)
        self._known.append(weakref.ref(optimizer))
        self.are_several = len(self._known) > 1

    def steps_again(self, optimizer: int) -> bool:
        """Whether the open step is over before one of them steps, as it did in it, alone."""
        over = optimizer in self._stepped and self._is_alone(optimizer)
        self._alone |= over
        return over

    def _is_alone(self, optimizer: int) -> bool:
        """Whether only others' models are unlike its own and uncalled since the last step of any
        optimizer."""
        own = self._models[optimizer]
        others = [
            self._models[i]
            for i, known in enumerate(self._known)
            if i not in self._stepped and known() is not None
        ]
        return all(
            models and models.isdisjoint(own) and not self._roots.were_called(models)
            for models in others
        )

    def note(self, optimizer: int) -> bool:
        """Note that one of several steps, by its number; whether it closes the step."""
        self._stepped[optimizer] += 1
        is_last = all(i in self._stepped or known() is None for i, known in enumerate(self._known))
        is_last = is_last or (self._alone and self._is_alone(optimizer))
        self._roots.forget_calls()
        if is_last:
            self.begin()
        return is_last

    def begin(self) -> None:
        """Begin a step, in which none has stepped."""
        if self._stepped:
            self._most = max(self._most, *self._stepped.values())
            self._stepped.clear()

    def remind(self, optimizer: int, step: int) -> None:
        """Warn, once, if the open step, a number, has many steps of one of them, and none of
        others."""
        times = self._stepped[optimizer]
        least = max(_STOPPED, _TIMES * self._most) if self._most else _OPEN_FOR
        if times < least or self._told:
            return
        self._told = True
        others = [known() for i, known in enumerate(self._known) if i not in self._stepped]
        missing = ", ".join(type(one).__name__ for one in others if one is not None)
        warn(
            f"hookstats: step {step} is still open after {times} steps of an optimizer, "
            f"as {missing} has not stepped; expected all optimizers of a watch to step, or "
            "Watch.step() to close steps"
        )


class Look(Protocol):
    """What looks at the steps of an optimizer that have no closure; it raises nothing."""

    def __call__(self, optimizer: Optimizer, *, after: bool) -> None: ...


class StepHook(Hook):
    """Step hook of one optimizer: observes the parameters, then reports that the optimizer steps.

    It is registered twice: `after` the step for calls with a closure, before it for all others.
    Where something is observed after steps, all steps are reported after they are done.
    """

    __slots__ = (
        *("_after", "_after_step", "_before", "_buffers", "_is_of_copies", "_look"),
        *("_native", "_optimizers", "_parameters", "_sample", "_then"),
    )

    def __init__(
        self,
        buffers: DoubleBuffer,
        parameters: Parameters,
        after_step: AfterStep,
        sample: StepSample | None,
        look: Look | None,
        optimizers: Optimizers,
        before: Callable[[], None],
        then: Callable[[], None],
        *,
        after: bool,
    ) -> None:
        """before: called before this observes anything at a step, where there are several
        optimizers. then: called after."""
        self._buffers = buffers
        self._parameters = parameters
        self._after_step = after_step
        self._sample = sample
        self._look = look
        self._optimizers = optimizers
        self._before = before
        self._then = then
        self._after = after
        self._native: _hooks.Parameters | None = None
        self._is_of_copies: bool | None = None

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        sample = self._sample
        if sample is not None and self._after:
            sample.after(optimizer)
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        is_its_time = (closure is not None) is self._after
        after_step = self._after_step
        if makes_optimizer_state():
            return  # it is no step of the training
        if self._look is not None and closure is None:
            self._look(optimizer, after=self._after)
        if not (is_its_time or after_step.is_needed):
            return  # the other hook has this step
        if is_its_time and self._optimizers.are_several:
            self._before()
        is_recorded = self._buffers.recording
        if is_recorded:
            if self._is_of_copies is None:
                self._is_of_copies = self._parameters.are_copied_by(optimizer)
            if is_its_time and self._is_of_copies:
                self._parameters.observe_all()
            elif is_its_time:
                self._native = self._parameters.observe(
                    [group["params"] for group in optimizer.param_groups],
                    self._native,
                    getattr(optimizer, "grad_scale", None),
                )
            if after_step.is_needed:
                (after_step.observe if self._after else after_step.keep)(optimizer)
        if self._after if after_step.is_needed else is_its_time:
            self._then()
        if sample is not None and is_its_time and not self._after:
            sample.before(optimizer, is_recorded)


break_graphs(StepHook.__call__, "hookstats reads gradients as the optimizer steps")
