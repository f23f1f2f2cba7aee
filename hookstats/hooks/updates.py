"""Updates: what an optimizer's step changed in the parameters, as the parameters after it less
those before.

The parameters are copied before the step of their optimizer and the copies are freed after it: in
recorded steps that takes as much memory as the watched parameters of that optimizer. An optimizer
that is given a closure is observed in the same way.
"""

from __future__ import annotations

import weakref
from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, WatchedParameter, own_length
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.widths import Widths

_Kept = tuple[WatchedParameter, Tensor, Tensor]
"""A parameter, its tensor, and a copy of what it was."""


class Updates:
    """The watched parameters, for the kind "update"."""

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._watched: list[WatchedParameter] = []
        self._kept: dict[int, list[_Kept]] = {}
        self._batches = Batches()

    def __bool__(self) -> bool:
        """Whether any update is watched."""
        return bool(self._watched)

    def add(self, owner: nn.Module, key: str, widths: Widths) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive."""
        identity = id(owner._parameters[key])
        self._watched.append(
            WatchedParameter(weakref.ref(owner), key, identity, value=widths, gradient=None)
        )

    def keep(self, optimizer: Optimizer) -> None:
        """Copy the watched ones of the parameters that `optimizer` is about to change."""
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            by_id = {id(watched.tensor()): watched for watched in self._watched}
            kept = self._kept[id(optimizer)] = []
            parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
            for parameter in parameters:
                watched = by_id.get(id(parameter))
                if watched is not None:
                    _keep(watched, parameter, kept)

    def accumulate(self, optimizer: Optimizer) -> None:
        """Accumulate what `optimizer` changed since `keep`."""
        kept = self._kept.pop(id(optimizer), [])
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            self._accumulate(kept)

    def _accumulate(self, kept: list[_Kept]) -> None:
        self._batches.let_go()  # of what an interrupt of the last call left
        try:
            for watched, parameter, before in kept:
                assert watched.value is not None
                length = own_length(parameter, [watched.value])
                if length == 0:
                    continue
                try:
                    change = before.neg_().add_(parameter.detach())
                except Exception as error:  # the parameter became another
                    watched.value.first.disable(error)
                else:
                    site = watched.value.at(change)
                    self._batches.add(site, change, scaled=False, length=length)
            self._batches.accumulate(self._buffers.front, None)
        finally:
            self._batches.let_go()


def _keep(watched: WatchedParameter, parameter: Tensor, kept: list[_Kept]) -> None:
    if watched.value is None or watched.value.first.error:
        return
    try:
        kept.append((watched, parameter, parameter.detach().clone()))
    except Exception as error:  # such as no memory: training has what there is
        watched.value.first.disable(error)
