"""StepHook: what happens when an optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch.optim import Optimizer

from hookstats.arena.arena import Arena
from hookstats.hooks.inert import Hook
from hookstats.hooks.parameters import Batches, Parameters
from hookstats.hooks.updates import Updates


class StepHook(Hook):
    """Step hook of one optimizer: observes the parameters, then reports that the optimizer steps.

    It is registered twice: `after` the step for calls with a closure, before it for all others.
    Where updates are watched, all steps are reported after they are done.
    """

    __slots__ = ("_after", "_arena", "_batches", "_parameters", "_then", "_updates")

    def __init__(
        self,
        arena: Arena,
        parameters: Parameters,
        updates: Updates,
        then: Callable[[], None],
        *,
        after: bool,
    ) -> None:
        self._arena = arena
        self._parameters = parameters
        self._updates = updates
        self._then = then
        self._after = after
        self._batches = Batches()

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        is_its_time = (closure is not None) is self._after
        updates = self._updates
        if self._arena.recording:
            if is_its_time:
                self._parameters.observe(
                    [group["params"] for group in optimizer.param_groups],
                    self._batches,
                    getattr(optimizer, "grad_scale", None),
                )
            if updates:
                (updates.fold if self._after else updates.keep)(optimizer)
        if self._after if updates else is_its_time:
            self._then()
