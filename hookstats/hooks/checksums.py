"""Checksums: what parameters are to the last bit, by which replicas and runs are compared."""

from __future__ import annotations

import weakref
from functools import cache

import torch
from torch import Tensor, nn

from hookstats._torch import is_flattened
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, WatchedParameter
from hookstats.hooks.readable import classify, own_dispatch
from hookstats.hooks.widths import Widths

_COLUMNS = 1024
_BITS = (1 << 53) - 1
"""Of a sum, those that float64 holds exactly."""
_WORDS = {1: torch.int8, 2: torch.int16}


def checksum(tensor: Tensor) -> Tensor:
    """The checksum of a tensor's bits, an integer below 2**53: float64 [1].

    The sum of the memory's words of 32 bits, or of elements that are shorter, each times an odd
    number that follows from its place modulo 1024, modulo 2**53. So it does not depend on the order
    of addition, and any one bit that flips changes it.
    """
    flat = tensor.detach()
    if not flat.is_contiguous():
        of_channels = flat.dim() == 4 and flat.is_contiguous(memory_format=torch.channels_last)
        flat = flat.permute(0, 2, 3, 1) if of_channels else flat.contiguous()
    words = flat.reshape(-1).view(_WORDS.get(flat.element_size(), torch.int32))
    whole = len(words) // _COLUMNS * _COLUMNS
    sums = words[:whole].view(-1, _COLUMNS).sum(0, dtype=torch.int64)
    sums[: len(words) - whole] += words[whole:]
    return ((sums * _factors(tensor.device)).sum() & _BITS).double().reshape(1)


@cache
def _factors(device: torch.device) -> Tensor:
    """int64 [_COLUMNS]: an odd number for each column, near 2**53 divided by the golden ratio."""
    places = 2 * torch.arange(_COLUMNS, device=device) + 1
    return places * 0x13C6EF372FE94F & _BITS


class Checksums:
    """The watched parameters, for the kind "checksum"."""

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._watched: list[tuple[WatchedParameter, Widths]] = []
        self._batches = Batches()

    def add(self, owner: nn.Module, key: str, sites: Widths) -> None:
        """Watch the parameter `key` of `owner`, without keeping either alive."""
        identity = id(owner._parameters[key])
        found = WatchedParameter(weakref.ref(owner), key, identity, value=None, gradient=None)
        self._watched.append((found, sites))

    def observe(self) -> None:
        """Accumulate the checksums of all watched parameters; called as a recorded step closes."""
        if not self._watched:
            return
        with self._buffers.lock, self._buffers.guard, torch.no_grad(), own_dispatch():
            self._batches.let_go()  # of what an interrupt of the last call left
            try:
                for watched, sites in self._watched:
                    parameter = watched.tensor()
                    if parameter is not None and not sites.first.error:
                        self._add(parameter, sites)
                self._batches.accumulate(self._buffers.front, None)
            finally:
                self._batches.let_go()

    def _add(self, parameter: Tensor, sites: Widths) -> None:
        own = "flattened by FSDP1" if is_flattened(parameter) else classify(parameter)
        if isinstance(own, str):
            sites.first.counts.skip(own)
            return
        try:
            found = checksum(own)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            sites.first.disable(error)
            return
        site = sites.at(found)
        site.note_sharding(parameter)  # of which this rank may have a replica, or a part
        self._batches.add(site, found, scaled=False)
