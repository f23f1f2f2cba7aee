"""The peers of one call of update_: Read, Update, InTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter

import torch
from sample import Sample
from torch import Tensor

from bench.accuracy import FLOAT32, HOOKSTATS, check
from bench.eager import Statistics
from bench.smoke import pick
from bench.states import CHANNEL_BINS, State, What
from hookstats.kernels import ops
from hookstats.stats import reference


@cache
def _other() -> Tensor:
    """64 MB: more than the last cache of most machines holds."""
    return torch.ones(pick(1 << 23, 1), dtype=torch.int64)


class Read:
    """The floor: a sum over the same bytes."""

    def __init__(self, sample: Sample) -> None:
        self.sample = sample

    def prepare(self) -> None:
        """Bring caches and threads into the same state for every peer."""
        _other().sum()

    def run(self) -> float | None:
        self._sum = self.sample.words.sum()
        return None

    def check(self) -> None:
        """Assert that the last result is right."""
        assert int(self._sum) == int(self.sample.words.numpy().sum())  # both wrap around


class Update(Read):
    """update_ on an empty state."""

    def __init__(self, sample: Sample, what: What) -> None:
        super().__init__(sample)
        self._what = what

    def prepare(self) -> None:
        self._state = State(self.sample.channels, self._what)
        super().prepare()

    def run(self) -> float | None:
        sample, what = self.sample, self._what
        ops.update_(sample.x, sample.channel_dim, *self._state.arguments, what.sampling)
        return None

    def found(self) -> Statistics:
        """The last result."""
        return self._state.statistics()

    def check(self) -> None:
        sample, what = self.sample, self._what
        expected = sample.expected
        if what.sampling is not None:  # the reference chooses the same elements
            made = State(sample.channels, what)
            reference.update_(sample.x, sample.channel_dim, *made.arguments, what.sampling)
            expected = made.statistics()
        check(self.found(), expected, HOOKSTATS)


class OneThread(Update):
    """update_ on one thread."""

    def run(self) -> float:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        start = perf_counter()
        super().run()
        seconds = perf_counter() - start
        torch.set_num_threads(threads)
        return seconds


class InTorch(Read):
    """`eager.statistics`, or what torch.compile made of it."""

    def __init__(self, sample: Sample, what: What, statistics: Callable[..., Statistics]) -> None:
        super().__init__(sample)
        self._what = what
        self._statistics = statistics

    def prepare(self) -> None:
        self._found: Statistics = {}  # gives the last result's memory back
        super().prepare()

    def run(self) -> float | None:
        sample, what = self.sample, self._what
        self._found = self._statistics(sample.rows, sample.axis, what.channel_bins, what.bins)
        return None

    def check(self) -> None:
        check(self._found, self.sample.expected, FLOAT32)


HISTC = "64 bins of the tensor, in a given range"
"""What `Histc` computes."""


class Histc(Read):
    """torch.histc: one histogram of the tensor's finite values, over a range that is given."""

    def run(self) -> float | None:
        bins = CHANNEL_BINS
        self._counts = torch.histc(self.sample.finite, bins.bins, bins.lo, bins.hi)
        return None

    def check(self) -> None:
        assert self._counts.isfinite().all()
        if (
            self._counts.dtype == torch.float32
        ):  # narrower ones are counted in narrower numbers, too
            expected = self.sample.expected["channel_counts"][:, 1:-1].sum(0)
            off = int((self._counts.long() - expected).abs().sum())
            assert off / 2 <= 1e-5 * self.sample.elements + 1  # beside an edge
