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

from bench.measure import Absent, required
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


class PerChannelMinMax(MinMax):
    """torch.ao's PerChannelMinMaxObserver."""

    def prepare(self) -> None:
        self.observer = self.library.PerChannelMinMaxObserver(ch_axis=self.sample.axis)
        Read.prepare(self)

    def check(self) -> None:
        found = self.sample.by_channel
        assert self.observer.min_val.double().equal(found.amin(0))
        assert self.observer.max_val.double().equal(found.amax(0))


class HistogramObserver(MinMax):
    """torch.ao's HistogramObserver: 2048 bins, over the range that it finds."""

    def prepare(self) -> None:
        self.observer = self.library.HistogramObserver()
        Read.prepare(self)

    def check(self) -> None:
        super().check()
        if self.x.dtype == torch.float32:
            assert int(self.observer.histogram.sum()) == self.sample.elements


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


class _PerChannel(_NumPy):
    """With the channel of every element as the other axis of a histogram of two."""

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        shape = [1] * self.x.dim()
        shape[sample.axis] = -1
        channel = torch.arange(sample.channels, dtype=torch.float32).view(shape)
        self._channel = channel.expand_as(self.x).reshape(-1).numpy()


class FastHistogramPerChannel(_PerChannel):
    """fast-histogram's histogram2d."""

    module, package = FastHistogram.module, FastHistogram.package

    def run(self) -> float | None:
        channels = self.sample.channels
        self._counts = self.library.histogram2d(
            self._channel,
            self.values(),
            bins=(channels, BINS),
            range=((-0.5, channels - 0.5), RANGE),
        )
        return None

    def check(self) -> None:
        self._assert_counts(torch.from_numpy(self._counts).long(), self._expected_counts)


class BoostHistogramPerChannel(_PerChannel):
    """boost-histogram, with an integer axis."""

    module, package = BoostHistogram.module, BoostHistogram.package

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        self._channel = self._channel.astype(np.int32)

    def prepare(self) -> None:
        axis = self.library.axis
        channels = axis.Integer(0, self.sample.channels, underflow=False, overflow=False)
        self._hist = self.library.Histogram(channels, axis.Regular(BINS, *RANGE))
        super().prepare()

    def run(self) -> float | None:
        # Threads have a histogram each, which pays for few bins only.
        self._hist.fill(self._channel, self.values())
        return None

    def check(self) -> None:
        self._assert_counts(torch.from_numpy(self._hist.values()).long(), self._expected_counts)


class BasicStatistics(_NumPy):
    """scikit-learn-intelex's BasicStatistics (oneDAL's low-order moments), a column per channel."""

    module, package = "sklearnex.basic_statistics", "scikit-learn-intelex"
    OPTIONS = ("mean", "variance", "min", "max")

    def __init__(self, sample: Sample) -> None:
        super().__init__(sample)
        if sample.axis != self.x.dim() - 1 and sample.channels > 1:
            raise Absent("would have to copy tensors whose channels are not the last dimension")

    def run(self) -> float | None:
        table = self.values().reshape(-1, self.sample.channels)
        self._fitted = self.library.BasicStatistics(result_options=list(self.OPTIONS)).fit(table)
        return None

    def check(self) -> None:
        x = self.sample.by_channel
        found = {name: torch.as_tensor(getattr(self._fitted, name + "_")) for name in self.OPTIONS}
        expected = {"mean": x.mean(0), "variance": x.var(0), "min": x.amin(0), "max": x.amax(0)}
        for name, values in expected.items():
            # It sums in float32: the variance of 2^23 values was seen 0.5 % off.
            torch.testing.assert_close(
                found[name].reshape(-1).double(), values, rtol=1e-2, atol=1e-2
            )


PARTS: dict[str, tuple[type[Part], str]] = {
    "ao MinMax": (MinMax, "torch.ao MinMaxObserver: min and max of the tensor"),
    "ao PerChannel": (
        PerChannelMinMax,
        "torch.ao PerChannelMinMaxObserver: min and max per channel",
    ),
    "sklearnex": (
        BasicStatistics,
        "scikit-learn-intelex BasicStatistics: mean, variance, min and max a column",
    ),
    "histc": (Histc, "torch.histc: 64 bins of the tensor, in a given range"),
    "ao Histogram": (HistogramObserver, "torch.ao HistogramObserver: 2048 bins of the tensor"),
    "fast-hist": (FastHistogram, "fast-histogram: 64 bins of the tensor, in a given range"),
    "boost-hist": (BoostHistogram, "boost-histogram: 64 bins of the tensor, in a given range"),
    "fast-hist 2d": (FastHistogramPerChannel, "fast-histogram histogram2d: 64 bins per channel"),
    "boost-hist 2d": (BoostHistogramPerChannel, "boost-histogram: 64 bins per channel"),
}
"""By name, with what each computes."""

OF_MOMENTS = ("ao MinMax", "ao PerChannel", "sklearnex")
OF_CHANNEL_BINS = ("fast-hist 2d", "boost-hist 2d")
OF_BINS = ("histc", "ao Histogram", "fast-hist", "boost-hist")


def parts_of(what: What) -> tuple[str, ...]:
    """Those of PARTS that compute a part of `what` beyond what they compute of another."""
    if what.channel_bins is not None:
        return OF_CHANNEL_BINS
    return OF_BINS if what.bins is not None else OF_MOMENTS
