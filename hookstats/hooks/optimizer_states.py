"""OptimizerStates: the tensors that an optimizer keeps for parameters, as its step left them."""

from __future__ import annotations

import weakref
from itertools import chain

from torch import Tensor, nn
from torch.optim import Optimizer

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, WatchedParameter, own_length
from hookstats.hooks.readable import own_dispatch
from hookstats.hooks.widths import Sites, Widths


class OptimizerStates:
    """The watched parameters, for the kinds "optimizer_state.exp_avg" and the like.

    Numbers that are counted, such as the steps of Adam, are tensors without dimensions, and left
    out.
    """

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._watched: list[tuple[WatchedParameter, Sites]] = []
        self._batches = Batches()

    def __bool__(self) -> bool:
        """Whether any state is watched."""
        return bool(self._watched)

    def add(self, owner: nn.Module, key: str, sites: Sites) -> None:
        """Watch the states of the parameter `key` of `owner`, without keeping either alive.

        sites: by the path of a state, such as ".exp_avg".
        """
        identity = id(owner._parameters[key])
        found = WatchedParameter(weakref.ref(owner), key, identity, value=None, gradient=None)
        self._watched.append((found, sites))

    def keep(self, optimizer: Optimizer) -> None:
        """States are observed after the step alone."""

    def accumulate(self, optimizer: Optimizer) -> None:
        """Accumulate the states that `optimizer` has for its watched parameters."""
        with self._buffers.lock, self._buffers.guard, own_dispatch():
            self._accumulate(optimizer)

    def _accumulate(self, optimizer: Optimizer) -> None:
        by_id = {id(watched.tensor()): sites for watched, sites in self._watched}
        parameters = chain.from_iterable(group["params"] for group in optimizer.param_groups)
        self._batches.let_go()  # of what an interrupt of the last call left
        try:
            for parameter in parameters:
                sites = by_id.get(id(parameter))
                if sites is None or parameter not in optimizer.state:
                    continue
                for name, state in optimizer.state[parameter].items():
                    if isinstance(state, Tensor) and state.dim():
                        self._add(parameter, state, sites[f".{name}"])
            self._batches.accumulate(self._buffers.front, None)
        finally:
            self._batches.let_go()

    def _add(self, parameter: Tensor, state: Tensor, widths: Widths) -> None:
        alike = state.shape == parameter.shape
        length = own_length(parameter, [widths]) if alike else None
        if length != 0:
            self._batches.add(widths.at(state), state, scaled=False, length=length)
