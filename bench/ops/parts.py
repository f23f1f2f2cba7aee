"""Libraries that compute a part of what update_ does, each as its own documents recommend.

What only prepares data of another form (the channel of every element, an array instead of a tensor)
is not timed where it could be kept from call to call; a copy of the values themselves is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from peers import Read
from sample import Sample
from torch import Tensor

from bench.measure import required
from bench.states import CHANNEL_BINS, What

RANGE = (CHANNEL_BINS.lo, CHANNEL_BINS.hi)
BINS = CHANNEL_BINS.bins
MISPLACED = 1e-5
"""The share of the values that may lie in a bin next to their own."""


class Part(Read):
    """A peer that computes a part, of finite values."""

    module = ""
    """What has to be installed."""
    package = ""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        self.library: Any = required(self.module, self.package) if self.module else None
        self.x = sample.finite

    def _assert_counts(self, found: Tensor, expected: Tensor) -> None:
        off = int((found - expected).abs().sum())
        assert off / 2 <= MISPLACED * self.sample.elements + 1

    @property
    def _expected_counts(self) -> Tensor:
        """[channels, bins], of the values in RANGE."""
        return self.sample.expected["channel_counts"][:, 1:-1]


class Histc(Part):
    """torch.histc, over a range that is given: one histogram of the tensor."""

    def run(self) -> float | None:
        self._counts = torch.histc(self.x, BINS, *RANGE)
        return None

    def check(self) -> None:
        if self.x.dtype == torch.float32:  # narrower ones are counted in narrower numbers, too
            self._assert_counts(self._counts.long(), self._expected_counts.sum(0))
        assert self._counts.isfinite().all()


class MinMax(Part):
    """torch.ao's MinMaxObserver."""

    module = "torch.ao.quantization.observer"
    observer: Any

    def prepare(self) -> None:
        self.observer = self.library.MinMaxObserver()
        super().prepare()

    def run(self) -> float | None:
        self.observer(self.x)
        return None

    def check(self) -> None:
        assert self.observer.min_val == self.x.min()
        assert self.observer.max_val == self.x.max()


class _NumPy(Part):
    """A peer that takes NumPy arrays: narrow floats are widened first."""

    def values(self) -> np.ndarray:
        return self.x.view(-1).float().numpy()


class FastHistogram(_NumPy):
    """fast-histogram, of the whole tensor."""

    module, package = "fast_histogram", "fast-histogram"

    def run(self) -> float | None:
        self._counts = self.library.histogram1d(self.values(), BINS, RANGE)
        return None

    def check(self) -> None:
        self._assert_counts(torch.from_numpy(self._counts).long(), self._expected_counts.sum(0))


class BoostHistogram(_NumPy):
    """boost-histogram, of the whole tensor, on torch's number of threads."""

    module, package = "boost_histogram", "boost-histogram"

    def prepare(self) -> None:
        self._hist = self.library.Histogram(self.library.axis.Regular(BINS, *RANGE))
        super().prepare()

    def run(self) -> float | None:
        self._hist.fill(self.values(), threads=torch.get_num_threads())
        return None

    def check(self) -> None:
        self._assert_counts(
            torch.from_numpy(self._hist.values()).long(), self._expected_counts.sum(0)
        )


PARTS: dict[str, tuple[type[Part], str]] = {
    "ao MinMax": (MinMax, "torch.ao MinMaxObserver: min and max of the tensor"),
    "histc": (Histc, "torch.histc: 64 bins of the tensor, in a given range"),
    "fast-hist": (FastHistogram, "fast-histogram: 64 bins of the tensor, in a given range"),
    "boost-hist": (BoostHistogram, "boost-histogram: 64 bins of the tensor, in a given range"),
}
"""By name, with what each computes."""


def parts_of(what: What) -> tuple[str, ...]:
    """Those of PARTS that compute a part of `what`."""
    return ("histc", "fast-hist", "boost-hist") if what.bins is not None else ("ao MinMax",)
