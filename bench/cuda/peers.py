"""The peers that are timed on a device, each of which can check what it found.

The inputs of a case are copies of one tensor at addresses of their own: cold, and with one answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import cycle
from typing import Any

import torch
from torch import Tensor

from bench import eager
from bench.accuracy import FLOAT32, HOOKSTATS, check
from bench.cuda.cases import Layout
from bench.measure import Absent
from bench.states import BINS, CHANNEL_BINS, EVERYTHING, State, What, empty_lists
from hookstats.kernels import ops
from hookstats.stats import reference

ACCUMULATED = replace(HOOKSTATS, cancellation=1e-18)
"""A constant's deviations are the rounding of its mean."""
PLAIN = replace(FLOAT32, mean=1e-3, misplaced=1e-4)
"""What torch's own operations are held to."""


def need_gpu(device: torch.device) -> None:
    """Raises Absent where there is none."""
    if device.type != "cuda":
        raise Absent("it needs a GPU")


class Sample:
    """The inputs of one case, which take turns, and their statistics."""

    def __init__(self, layout: Layout, flat: Tensor, inputs: int) -> None:
        """flat: the values [elements]."""
        self.layout = layout
        self.xs = [flat.clone().view(layout.shape) for _ in range(inputs)]
        self.next = partial(next, cycle(self.xs))
        """The input that was not used for longest."""

    @property
    def bytes(self) -> int:
        return self.xs[0].nbytes

    @cached_property
    def expected(self) -> eager.Statistics:
        """By the reference, in float64, with every histogram that is ever asked for; on the CPU."""
        made = State(self.layout.channels, EVERYTHING, self.xs[0].device)
        reference.update_(self.xs[0], self.layout.channel_dim, *made.arguments)
        return made.statistics()

    @property
    def binned(self) -> Tensor:
        """int64: how many values each linear bin has, of the whole tensor."""
        return self.expected["channel_counts"].sum(0)[1:-1]


class Update:
    """update_, always into one state."""

    def __init__(self, sample: Sample, what: What) -> None:
        self._sample = sample
        self._state = State(sample.layout.channels, what, sample.xs[0].device)
        self._calls = 0

    def prepare(self) -> None:
        self._x = self._sample.next()

    def run(self) -> None:
        ops.update_(self._x, self._sample.layout.channel_dim, *self._state.arguments)
        self._calls += 1

    def check(self) -> None:
        """Assert that all that was timed is in the state."""
        same = ("mean", "var", "min", "max")
        expected = self._sample.expected.items()
        accumulated = {name: v if name in same else v * self._calls for name, v in expected}
        check(self._state.statistics(), accumulated, ACCUMULATED)


class UpdateMany:
    """update_many_ of parameters' gradients, always into the same states, with log bins of each."""

    def __init__(self, xs: list[Tensor]) -> None:
        self._xs = xs
        self._lists = empty_lists(xs)
        self._descriptor = BINS.descriptor(xs[0].device)
        self._calls = 0

    def prepare(self) -> None:
        """All of them are read, and so they are cold."""

    def run(self) -> None:
        ops.update_many_(self._xs, 0, *self._lists, self._descriptor, [], None)
        self._calls += 1

    def check(self) -> None:
        """Assert that all that was timed is in the states."""
        once = empty_lists(self._xs)
        reference.update_many_(self._xs, 0, *once, self._descriptor, [], None)
        assert torch.equal(torch.cat(self._lists[1]), torch.cat(once[1]) * self._calls)
        assert torch.equal(torch.stack(self._lists[2]), torch.stack(once[2]) * self._calls)
        assert torch.equal(torch.cat(self._lists[0])[:, 2:4], torch.cat(once[0])[:, 2:4])


class Found:
    """A call whose last result is kept and checked."""

    def __init__(
        self, take: Callable[[], Any], call: Callable[[Any], Any], check: Callable[[Any], None]
    ) -> None:
        """take: gives the next input."""
        self._take = take
        self._call = call
        self._check = check

    def prepare(self) -> None:
        self._x = self._take()
        self._found = None  # gives the last result's memory back first

    def run(self) -> None:
        self._found = self._call(self._x)

    def check(self) -> None:
        """Assert that the last result is right."""
        self._check(self._found)


def torch_sum(take: Callable[[], Tensor], x: Tensor) -> Found:
    """The yardstick: torch.sum of the same tensors, all of which are like `x`."""
    parts = x.flatten().split(1 << 24)  # or what is made of all of it may not fit the memory
    finite = all(bool(part.isfinite().all()) for part in parts)

    def right(found: Tensor) -> None:
        # Of values around zero the sum is small beside its rounding: held to that of magnitudes.
        wide = sum(part.double().sum() for part in parts)
        size = sum(part.double().abs().sum() for part in parts)
        narrow = 1e-2 if x.dtype in (torch.bfloat16, torch.float16) else 1e-5
        assert not finite or bool(abs(found.double() - wide) <= narrow * size), "torch.sum"

    return Found(take, torch.sum, right)


def foreach_norm(xs: list[Tensor]) -> Found:
    """torch._foreach_norm of all of them."""

    def right(found: Sequence[Tensor]) -> None:
        expected = torch.stack([x.double().norm() for x in xs])
        torch.testing.assert_close(torch.stack(list(found)).double(), expected, rtol=1e-3, atol=0)

    return Found(lambda: xs, torch._foreach_norm, right)


def statistics(sample: Sample, what: What, *, compiled: bool = False) -> Found:
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

    def right(found: eager.Statistics) -> None:
        check({name: values.cpu() for name, values in found.items()}, sample.expected, PLAIN)

    return Found(sample.next, call, right)


def batch_norm_stats(sample: Sample) -> Found:
    """Mean and inverse deviation of every channel of (N, C, ...), as batch norm takes them."""
    need_gpu(sample.xs[0].device)

    def right(found: tuple[Tensor, Tensor]) -> None:
        mean = sample.expected["mean"]
        torch.testing.assert_close(found[0].cpu().double(), mean, rtol=1e-3, atol=1e-3)

    return Found(sample.next, lambda x: torch.batch_norm_stats(x, 1e-5), right)


def histc(sample: Sample) -> Found:
    """torch.histc: one histogram of the tensor, in float32."""
    bins = CHANNEL_BINS

    def right(found: Tensor) -> None:
        total = sample.binned.double()
        # Its counters are float32: exact up to 2**24, and then they stick.
        assert bool(((found.cpu().double() - total).abs() <= 1e-3 * total + 8).all()), "torch.histc"

    return Found(sample.next, lambda x: torch.histc(x, bins.bins, bins.lo, bins.hi), right)
