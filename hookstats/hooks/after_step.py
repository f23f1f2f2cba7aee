"""AfterStep: what an optimizer's step changed in parameters, and what the optimizer keeps for them.

An update is a parameter after the step less the parameter before it. The parameters are copied
before the step of their optimizer and the copies are freed after it: in recorded steps that takes
as much memory as the watched parameters of that optimizer. An optimizer that is given a closure is
observed in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import chain

from torch import Tensor
from torch.optim import Optimizer

from hookstats._torch import is_freed
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, Parameters, WatchedParameter, own_length
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.widths import Sites, Widths
from hookstats.records import reasons

_Kept = tuple[Tensor, Widths, Tensor]
"""A parameter, the sites of its update, and a copy of what it was."""


class AfterStep:
    """The watched parameters, for the kinds "update" and "optimizer_state.exp_avg" and the like.

    Of what the optimizer keeps, what has no dimensions, as the number of Adam's steps, is left out.
    """

    def __init__(self, buffers: DoubleBuffer, parameters: Parameters) -> None:
        self._buffers = buffers
        self._parameters = parameters
        self._kept: dict[int, list[_Kept]] = {}

    @cached_property
    def is_needed(self) -> bool:
        """Whether anything is watched; asked once there are all parameters."""
        return any(
            "update" in one.sites or one.states is not None for one in self._parameters.watched
        )

    def keep(self, optimizer: Optimizer) -> None:
        """Copy the parameters that `optimizer` is about to change."""
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            kept = self._kept[id(optimizer)] = []
            for parameter, watched in self._of(optimizer):
                update = watched.sites.get("update")
                if update is None or update.first.error:
                    continue
                if is_freed(parameter):
                    update.first.counts.skip(reasons.NO_STORAGE)
                    continue
                try:
                    kept.append((parameter, update, parameter.detach().clone()))
                except Exception as error:  # such as no memory: training has what there is
                    update.first.disable(error)

    def observe(self, optimizer: Optimizer) -> None:
        """Accumulate what `optimizer` changed since `keep`, and what it keeps."""
        kept = self._kept.pop(id(optimizer), [])
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            batches = Batches()
            for parameter, update, before in kept:
                _add_update(batches, parameter, update, before)
            for parameter, watched in self._of(optimizer):
                if watched.states is not None:
                    states = optimizer.state.get(parameter, {})
                    _add_states(batches, parameter, watched.states, states)
            batches.accumulate(self._buffers.front)

    def _of(self, optimizer: Optimizer) -> Iterator[tuple[Tensor, WatchedParameter]]:
        by_id = {id(watched.tensor()): watched for watched in self._parameters.watched}
        for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if watched := by_id.get(id(parameter)):
                yield parameter, watched


def _add_update(batches: Batches, parameter: Tensor, update: Widths, before: Tensor) -> None:
    length = own_length(parameter, [update])
    if length == 0:
        return
    if is_freed(parameter):
        update.first.counts.skip(reasons.NO_STORAGE)
        return
    try:
        change = before.neg_().add_(parameter.detach())
    except Exception as error:  # the parameter became another
        update.first.disable(error)
    else:
        batches.add(update.at(change), change, length=length)


def _add_states(
    batches: Batches, parameter: Tensor, sites: Sites, states: Mapping[str, object]
) -> None:
    for name, state in states.items():
        if isinstance(state, Tensor) and state.dim():
            widths = sites[f".{name}"]
            is_like = state.shape == parameter.shape
            length = own_length(parameter, [widths]) if is_like else None
            if length != 0:
                batches.add(widths.at(state), state, length=length)
