"""Checksums: what parameters are to the last bit, by which replicas and runs are compared."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor, nn

from hookstats._torch import is_flattened
from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.hooks.parameters import Batches, Parameters
from hookstats.hooks.readable import classify, own_dispatch
from hookstats.hooks.widths import Widths
from hookstats.records.replicas import CHECKSUM

_RUNS = 1024
_BITS = (1 << 53) - 1
"""Those of an integer that float64 holds exactly."""
_HALF = (1 << 32) - 1
_FACTOR = 0x13C6EF372FE94F
"""Odd: 2**53 divided by the golden ratio."""


def checksum(tensor: Tensor) -> Tensor:
    """The checksum of a tensor's bits, an integer below 2**53: float64 [1].

    The sum of the memory's words of 64 bits, each times an odd number that follows from its place,
    modulo 2**64; its halves become one number modulo 2**53. So it does not depend on the order of
    addition, and any one bit that flips changes it, but for one chance in 2**53. The memory is read
    once, as fast as by `torch.sum`.
    """
    flat = tensor.detach()
    if not flat.is_contiguous():
        of_channels = flat.dim() == 4 and flat.is_contiguous(memory_format=torch.channels_last)
        flat = flat.permute(0, 2, 3, 1) if of_channels else flat.contiguous()
    raw = flat.reshape(-1).view(torch.uint8)
    if raw.storage_offset() % 8:
        raw = raw.clone()
    whole = len(raw) // 8 * 8
    words = raw[:whole].view(torch.int64)
    in_runs = len(words) // _RUNS * _RUNS  # one factor for each of so many runs of words
    sums = words[:in_runs].view(_RUNS, -1).sum(1)
    sums[: len(words) - in_runs] += words[in_runs:]
    if whole < len(raw):
        sums[-1:] += nn.functional.pad(raw[whole:], (0, whole + 8 - len(raw))).view(torch.int64)
    total = (sums * _factors(tensor.device)).sum()
    return ((total & _HALF) + (total >> 32 & _HALF) * _FACTOR & _BITS).double().reshape(1)


@cache
def _factors(device: torch.device) -> Tensor:
    """int64 [_RUNS]: an odd number for each run."""
    return (2 * torch.arange(_RUNS, device=device) + 1) * _FACTOR


def observe(buffers: DoubleBuffer, parameters: Parameters) -> None:
    """Accumulate the checksums of the watched parameters; called as a recorded step closes."""
    with buffers.lock, buffers.guard, torch.no_grad(), own_dispatch():
        batches = Batches()
        for one in parameters.watched:
            parameter, sites = one.tensor(), one.sites[CHECKSUM]
            if parameter is not None and not sites.first.error:
                _add(batches, parameter, sites)
        batches.accumulate(buffers.front)


def _add(batches: Batches, parameter: Tensor, sites: Widths) -> None:
    own = "flattened by FSDP1" if is_flattened(parameter) else classify(parameter)
    if isinstance(own, str):
        sites.first.counts.skip(own)
        return
    try:
        found = checksum(own)
    except Exception as error:
        sites.first.disable(error)
        return
    site = sites.at(found)
    site.note_sharding(parameter)  # of which this rank may have a replica, or a part
    batches.add(site, found)
