"""What is timed, side by side: each takes the number of an input, and can check what it found.

The inputs of a case are copies of one tensor at addresses of their own: cold, and with one answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bench import eager
from bench.cuda.cases import ALL, CHANNEL_BINS, Layout, What
from hookstats.kernels import ops
from hookstats.stats import reference, state


class Sample:
    """The inputs of one case, and the state that one of them makes of an empty one."""

    def __init__(self, layout: Layout, flat: Tensor, inputs: int) -> None:
        """flat: the values [elements]; those beyond the layout's are left out."""
        self.layout = layout
        used = flat[: _numel(layout)]
        self.xs = [used.clone().view(layout.shape) for _ in range(inputs)]

    @property
    def bytes(self) -> int:
        return self.xs[0].nbytes

    @cached_property
    def expected(self) -> State:
        """By the reference, in float64, with every histogram that is ever asked for."""
        made = State(self.layout.channels, ALL, self.xs[0].device)
        reference.update_(self.xs[0], self.layout.channel_dim, *made.arguments)
        return made


class State:
    """An empty state, as update_ takes it."""

    def __init__(self, channels: int, what: What, device: torch.device) -> None:
        self.what = what
        self.moments = state.identity_moments(channels, device)
        self.tallies = state.identity_tallies(channels, device)
        self.counts: Tensor | None = None
        self.channel_counts: Tensor | None = None
        if what.bins is not None:
            self.counts = torch.zeros(what.bins.slots, dtype=torch.int64, device=device)
        if what.channel_bins is not None:
            slots = what.channel_bins.slots
            self.channel_counts = torch.zeros(channels, slots, dtype=torch.int64, device=device)
        self.arguments = (
            self.moments,
            self.tallies,
            self.counts,
            None if what.bins is None else what.bins.descriptor(device),
            self.channel_counts,
            None if what.channel_bins is None else what.channel_bins.descriptor(device),
        )

    def check(self, once: State, times: int) -> None:
        """Assert that it is what `times` calls make of an empty one, if one makes it `once`."""
        assert torch.equal(self.tallies, once.tallies * times), "tallies"
        for name in ("counts", "channel_counts"):
            got, expected = getattr(self, name), getattr(once, name)
            assert got is None or torch.equal(got, expected * times), name
        mean, m2, least, most, l1 = self.moments.unbind(1)
        mean_1, m2_1, least_1, most_1, l1_1 = once.moments.unbind(1)
        assert torch.equal(least, least_1), "min"
        assert torch.equal(most, most_1), "max"
        n = once.tallies[:, state.TALLIES.index("count")].clamp(min=1)
        std = (m2_1 / n).sqrt()
        assert bool(((mean - mean_1).abs() <= 1e-6 * (mean_1.abs() + std)).all()), "mean"
        # A constant's deviations are the rounding of its mean.
        slack = 1e-5 * m2_1 * times + n * times * (1e-9 * mean_1).square()
        assert bool(((m2 - m2_1 * times).abs() <= slack).all()), "m2"
        assert bool(((l1 - l1_1 * times).abs() <= 1e-6 * l1_1 * times).all()), "l1"


class Update:
    """update_, always into one state."""

    def __init__(self, sample: Sample, what: What) -> None:
        self._sample = sample
        self._state = State(sample.layout.channels, what, sample.xs[0].device)
        self._calls = 0

    def run(self, number: int) -> None:
        sample = self._sample
        ops.update_(sample.xs[number], sample.layout.channel_dim, *self._state.arguments)
        self._calls += 1

    def check(self) -> None:
        """Assert that all that was timed is in the state."""
        self._state.check(self._sample.expected, self._calls)


class Found:
    """A call whose last result is kept and checked."""

    def __init__(
        self, xs: list[Tensor], call: Callable[[Tensor], Any], check: Callable[[Any], None]
    ) -> None:
        self._xs = xs
        self._call = call
        self._check = check

    def run(self, number: int) -> None:
        self._found = None  # gives the last result's memory back first
        self._found = self._call(self._xs[number])

    def check(self) -> None:
        """Assert that the last result is right."""
        self._check(self._found)


def torch_sum(sample: Sample) -> Found:
    """The yardstick: torch.sum of the same tensor."""
    x = sample.xs[0]
    finite = bool(x.isfinite().all())

    def check(found: Tensor) -> None:
        # Of values around zero the sum is small beside its rounding: held to that of magnitudes.
        wide = sum(part.double().sum() for part in x.flatten().split(1 << 24))
        size = sum(part.double().abs().sum() for part in x.flatten().split(1 << 24))
        narrow = 1e-2 if x.dtype in (torch.bfloat16, torch.float16) else 1e-5
        assert not finite or bool(abs(found.double() - wide) <= narrow * size), "torch.sum"

    return Found(sample.xs, torch.sum, check)


def statistics(sample: Sample, what: What, *, compiled: bool) -> Found:
    """The same statistics in plain torch operations, eager or as torch.compile fuses them."""
    layout = sample.layout
    function: Callable[..., eager.Statistics] = eager.statistics
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(eager.statistics, fullgraph=True, dynamic=False)

    def call(x: Tensor) -> eager.Statistics:
        with x.device:  # where it makes its tables
            rows, axis = x.view(layout.rows), layout.channel_dim or 0
            return function(rows, axis, what.channel_bins, what.bins)

    def check(found: eager.Statistics) -> None:
        expected = sample.expected
        for name in ("count", "nan", "posinf", "neginf", "zero"):
            right = expected.tallies[:, state.TALLIES.index(name)]
            assert torch.equal(found[name], right), name
        mean = expected.moments[:, 0]
        size = expected.moments[:, 4] / found["count"].clamp(min=1)
        assert bool(((found["mean"] - mean).abs() <= 1e-3 * size).all()), "mean"
        for name, right in (
            ("channel_counts", expected.channel_counts),
            ("counts", expected.counts),
        ):
            if name in found and right is not None:  # bins are computed rather than searched for
                off = (found[name].view_as(right) - right).abs().sum()
                assert int(off) <= 1e-4 * int(right.sum()), name

    return Found(sample.xs, call, check)


def batch_norm_stats(sample: Sample) -> Found:
    """Mean and inverse deviation of every channel of (N, C, ...), as batch norm takes them."""

    def check(found: tuple[Tensor, Tensor]) -> None:
        mean = sample.expected.moments[:, 0]
        torch.testing.assert_close(found[0].double(), mean, rtol=1e-3, atol=1e-3)

    return Found(sample.xs, lambda x: torch.batch_norm_stats(x, 1e-5), check)


def histc(sample: Sample) -> Found:
    """torch.histc: one histogram of the tensor, in float32."""
    bins = CHANNEL_BINS

    def check(found: Tensor) -> None:
        right = sample.expected.channel_counts
        assert right is not None
        total = right.sum(0)[1:-1].double()
        # Its counters are float32: exact up to 2**24, and then they stick.
        assert bool(((found.double() - total).abs() <= 1e-3 * total + 8).all()), "torch.histc"

    return Found(sample.xs, lambda x: torch.histc(x, bins.bins, bins.lo, bins.hi), check)


def cupy_histogram(sample: Sample) -> Found:
    """CuPy's histogram of the tensor, which is CUB's where it can be.

    Raises:
        ImportError: there is no CuPy.
    """
    import cupy

    bins = CHANNEL_BINS
    limits = (bins.lo, bins.hi)
    views = [cupy.from_dlpack(x.flatten()) for x in sample.xs]

    def run_of(x: Any) -> Any:
        stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            return cupy.histogram(x, bins.bins, limits)[0]

    def check(found: Any) -> None:
        right = sample.expected.channel_counts
        assert right is not None
        total = right.sum(0)[1:-1]
        off = (torch.from_dlpack(found).to(total) - total).abs().sum()
        assert int(off) <= 1e-4 * int(total.sum()), "cupy.histogram"

    return Found(views, run_of, check)


def _numel(layout: Layout) -> int:
    numel = 1
    for size in layout.shape:
        numel *= size
    return numel
