"""AfterStep: what an optimizer's step changed in parameters, and what the optimizer keeps for them.

An update is a parameter after the step less the parameter before it. The parameters are copied
before the step of their optimizer and the copies are freed after it: in recorded steps that takes
as much memory as the watched parameters of that optimizer. An optimizer that is given a closure is
observed in the same way.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats._torch import is_freed
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, WatchedParameter, own_length
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.widths import Sites, Widths
from hookstats.records import reasons

_Kept = tuple[Tensor, Widths, Tensor]
"""A parameter, the sites of its update, and a copy of what it was."""


class AfterStep:
    """The watched parameters, for the kinds "update" and "optimizer_state.exp_avg" and the like."""

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._watched: list[tuple[WatchedParameter, Widths | None, Sites | None]] = []
        self._kept: dict[int, list[_Kept]] = {}
        self._batches = Batches()

    def __bool__(self) -> bool:
        """Whether any parameter is watched."""
        return bool(self._watched)

    def add(self, owner: nn.Module, key: str, update: Widths | None, states: Sites | None) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive.

        states: by the path of what the optimizer keeps, such as ".exp_avg". What has no dimensions,
            such as the number of Adam's steps, is left out.
        """
        identity = id(owner._parameters[key])
        found = WatchedParameter(weakref.ref(owner), key, identity, value=None, gradient=None)
        self._watched.append((found, update, states))

    def keep(self, optimizer: Optimizer) -> None:
        """Copy the parameters that `optimizer` is about to change."""
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            kept = self._kept[id(optimizer)] = []
            for parameter, update, _ in self._of(optimizer):
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
            self._batches.let_go()  # of what an interrupt of the last call left
            try:
                for parameter, update, before in kept:
                    self._add_update(parameter, update, before)
                for parameter, _, states in self._of(optimizer):
                    if states is not None:
                        self._add_states(parameter, states, optimizer.state.get(parameter, {}))
                self._batches.accumulate(self._buffers.front, None)
            finally:
                self._batches.let_go()

    def _of(self, optimizer: Optimizer) -> Iterator[tuple[Tensor, Widths | None, Sites | None]]:
        """The watched ones of the optimizer's parameters."""
        by_id = {id(watched.tensor()): sites for watched, *sites in self._watched}
        for parameter in chain.from_iterable(group["params"] for group in optimizer.param_groups):
            if sites := by_id.get(id(parameter)):
                yield parameter, *sites

    def _add_update(self, parameter: Tensor, update: Widths, before: Tensor) -> None:
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
            self._batches.add(update.at(change), change, scaled=False, length=length)

    def _add_states(self, parameter: Tensor, sites: Sites, states: Mapping[str, object]) -> None:
        for name, state in states.items():
            if isinstance(state, Tensor) and state.dim():
                widths = sites[f".{name}"]
                is_like = state.shape == parameter.shape
                length = own_length(parameter, [widths]) if is_like else None
                if length != 0:
                    self._batches.add(widths.at(state), state, scaled=False, length=length)
