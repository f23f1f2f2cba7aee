"""StepHook: what happens when an optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch.optim import Optimizer

from hookstats._torch import makes_optimizer_state
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.inert import Hook
from hookstats.hooks.parameters import Batches, Parameters


class Follower(Protocol):
    """What is observed around a step of an optimizer, if it is true."""

    def keep(self, optimizer: Optimizer) -> None:
        """Called before the step."""

    def accumulate(self, optimizer: Optimizer) -> None:
        """Called after the step, which is still open."""


class StepHook(Hook):
    """Step hook of one optimizer: observes the parameters, then reports that the optimizer steps.

    It is registered twice: `after` the step for calls with a closure, before it for all others.
    Where there are followers, all steps are reported after they are done.
    """

    __slots__ = ("_after", "_batches", "_buffers", "_followers", "_parameters", "_then")

    def __init__(
        self,
        buffers: DoubleBuffer,
        parameters: Parameters,
        followers: Sequence[Follower],
        then: Callable[[], None],
        *,
        after: bool,
    ) -> None:
        self._buffers = buffers
        self._parameters = parameters
        self._followers = [follower for follower in followers if follower]
        self._then = then
        self._after = after
        self._batches = Batches()

    def __call__(
        self, optimizer: Optimizer, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        closure = args[1] if len(args) > 1 else kwargs.get("closure")  # args[0] is the optimizer
        is_its_time = (closure is not None) is self._after
        followers = self._followers
        if not (is_its_time or followers) or makes_optimizer_state():
            return  # the other hook has this step, or it is no step of the training
        if self._buffers.recording:
            if is_its_time:
                self._parameters.observe(
                    [group["params"] for group in optimizer.param_groups],
                    self._batches,
                    getattr(optimizer, "grad_scale", None),
                )
            for follower in followers:
                (follower.accumulate if self._after else follower.keep)(optimizer)
        if self._after if followers else is_its_time:
            self._then()
