"""What statistics, coverage and captures have to be, for the tests of what collects them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from support.samples import slots
from torch import Tensor

from hookstats.kernels.of_tensor import channel_stats
from hookstats.stats.channel_stats import ChannelStats
from hookstats.tensors.capture_handles import Capture
from hookstats.watching.handle import Watch


def assert_stats(got: ChannelStats, tensors: Sequence[Tensor], channel_dim: int | None) -> None:
    """Assert that `got` is what all values of `tensors` have together."""
    rows = [
        x.detach().reshape(1, -1) if channel_dim is None else x.detach().movedim(channel_dim, 0)
        for x in tensors
    ]
    whole = torch.cat([x.reshape(len(x), -1) for x in rows], dim=1)
    expected = channel_stats(whole.double(), 0)
    assert torch.equal(got.tallies, expected.tallies)
    torch.testing.assert_close(got.moments, expected.moments, rtol=1e-5, atol=1e-6)
    if got.hist is not None:
        by_channel = channel_stats(whole, 0, bins=got.hist.bins).hist
        assert (slots(got.hist) == slots(by_channel)).all()
    if got.tensor_hist is not None:
        flat = channel_stats(whole, None, bins=got.tensor_hist.bins).hist
        assert (slots(got.tensor_hist) == slots(flat)).all()


def assert_adds_up(observer: Watch | Capture) -> None:
    """Assert that every call of every site is accounted for, and that no hook failed."""
    assert_reconciles(observer)
    for row in observer.coverage():
        assert row.error is None, row


def assert_reconciles(observer: Watch | Capture) -> None:
    """Assert that every call of every site is accounted for."""
    for row in observer.coverage():
        assert row.forwards == row.observed + row.missing + sum(row.skipped.values()), row


def same(actual: list[Any], expected: list[Any]) -> bool:
    """Whether tensors, one per call, are equal bit for bit."""
    return len(actual) == len(expected) and all(map(torch.equal, actual, expected))
