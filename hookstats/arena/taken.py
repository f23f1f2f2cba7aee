"""Taken: what the operator `take_` gets out of the states of a step, and where in memory."""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.stats.state import MOMENTS, TALLIES


class Sizes(NamedTuple):
    """How much `take_` takes out."""

    rows: int
    tensors: int
    hist: int
    """The number of histograms of whole tensors."""
    channel_hist: int
    """The number of histograms of channels."""

    @property
    def words(self) -> int:
        """The int64 of memory that all takes but the entries of histograms."""
        end: int = _parts(self)[-1].stop
        return end + 1  # at last, whether it is there


@lru_cache(64)
def _parts(sizes: Sizes) -> tuple[slice, ...]:
    """Where in this memory the parts are."""
    rows, tensors, hist, channel_hist = sizes
    lengths = (
        *(len(MOMENTS) * rows, len(TALLIES) * rows),
        *(len(MOMENTS) * tensors, len(TALLIES) * tensors),
        *(hist + 1, channel_hist + 1),
    )
    return tuple([slice(first, end) for first, end in pairwise(accumulate(lengths, initial=0))])


_MOMENTS, _TALLIES, _WHOLE_MOMENTS, _WHOLE_TALLIES, _OFFSETS, _CHANNEL_OFFSETS = range(6)


class Taken:
    """The states that `take_` took out, on the CPU.

    Arrays of channels share the memory. Those of whole tensors are copies: what is kept of a record
    for long are these alone, as a rule, and a few kilobytes would keep the megabytes of channels.
    """

    __slots__ = ("entries", "memory", "sizes", "slots")

    def __init__(self, sizes: Sizes, memory: Int64 | None = None) -> None:
        """Nothing yet, in memory for `take_`: int64 [sizes.words], with anything in it."""
        self.sizes = sizes
        self.memory: Int64 = np.empty(sizes.words, np.int64) if memory is None else memory
        self.memory[-1] = 0
        # `take_` gives these their sizes: those of the tensors' histograms, then of the channels'.
        self.slots = torch.empty(0, dtype=torch.int32, device="cpu")
        self.entries = torch.empty(0, dtype=torch.int64, device="cpu")

    @property
    def into(self) -> tuple[Tensor, Tensor, Tensor]:
        """The last arguments of `take_`."""
        return torch.from_numpy(self.memory), self.slots, self.entries

    @property
    def is_there(self) -> bool:
        """Whether `take_` has taken the states out."""
        return bool(self.memory[-1])

    @property
    def nbytes(self) -> int:
        """The bytes of all of it."""
        return self.memory.nbytes + self.slots.nbytes + self.entries.nbytes

    @property
    def moments(self) -> Float64:
        """float64 [rows, 5]; by column in memory."""
        columns = self._part(_MOMENTS).view(np.float64)
        rows: Float64 = columns.reshape(len(MOMENTS), -1).T
        return rows

    @property
    def tallies(self) -> Int64:
        """int64 [rows, 5]; by column in memory."""
        rows: Int64 = self._part(_TALLIES).reshape(len(TALLIES), -1).T
        return rows

    @property
    def whole_moments(self) -> Float64:
        """float64 [tensors, 5]: those of whole tensors, their channels merged."""
        whole: Float64 = self._part(_WHOLE_MOMENTS).view(np.float64).copy()
        return whole.reshape(-1, len(MOMENTS))

    @property
    def whole_tallies(self) -> Int64:
        """int64 [tensors, 5]."""
        whole: Int64 = self._part(_WHOLE_TALLIES).copy()
        return whole.reshape(-1, len(TALLIES))

    @property
    def hist(self) -> SparseCounts:
        """The histograms of whole tensors."""
        offsets = self._part(_OFFSETS).copy()
        slots, counts = self.slots.numpy(), self.entries.numpy()
        if len(slots) > offsets[-1]:  # the rest is of channels
            slots, counts = slots[: offsets[-1]].copy(), counts[: offsets[-1]].copy()
        return SparseCounts(offsets, slots, counts)

    @property
    def channel_hist(self) -> SparseCounts:
        """The histograms of channels."""
        first, offsets = self._part(_OFFSETS)[-1], self._part(_CHANNEL_OFFSETS)
        entries = slice(first, first + offsets[-1])
        return SparseCounts(offsets, self.slots.numpy()[entries], self.entries.numpy()[entries])

    def _part(self, part: int) -> Int64:
        return self.memory[_parts(self.sizes)[part]]
