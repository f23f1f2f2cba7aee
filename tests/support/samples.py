"""Step records of real tensors, for the tests of what reads, writes and shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import SparseCounts
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.histogram import Histogram
from hookstats.stats.state import identity_moments

BINS = LogBins(2)
CHANNEL_BINS = LinearBins(8, -2.0, 2.0)

Tensors = Mapping[tuple[str, str], tuple[Tensor, int | None]]
"""By name and kind, a tensor and its channel dimension."""


def tensors(seed: int = 0) -> dict[tuple[str, str], tuple[Tensor, int | None]]:
    """Odd sites: non-finite, zero, constant and empty channels, odd names, shapes by the seed."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(4 + seed % 3, 3, 5, generator=generator)
    x[:, 0] = 0.0
    x[0, 1, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    return {
        ("", "output"): (x, 1),
        ("encoder.0.réseau", "output[1]"): (torch.full((2, 7), 1e4), -1),
        ("encoder.0.réseau", "grad_output.logits"): (torch.full((3, 2), torch.nan), 1),
        ("层", "param"): (torch.empty(0, 4), 1),
        ("no.channels", "input"): (torch.empty(2, 0), 1),
        ("whole", "param_grad"): (1e6 + torch.randn(2 + seed % 5, 9, generator=generator), None),
        ("scalar", "output"): (torch.tensor(0.25), None),
    }


def record_of(
    data: Tensors,
    step: int = 0,
    rank: int = 0,
    bins: Bins | None = BINS,
    channel_bins: Bins | None = CHANNEL_BINS,
) -> StepRecord:
    """The record of a step in which each site saw one tensor."""
    sites, rows = [], [identity_moments(0).numpy()]
    tallies = [np.empty((0, 5), np.int64)]
    hist = [np.empty((0, bins.slots if bins else 0), np.int64)]
    channel_hist = [np.empty((0, channel_bins.slots if channel_bins else 0), np.int64)]
    for (name, kind), (x, dim) in data.items():
        stats = channel_stats(x, dim, bins=channel_bins)
        sites.append(
            SiteInfo(name, kind, len(stats), dim, tuple(x.shape), str(x.dtype).split(".")[1])
        )
        rows.append(stats.moments.numpy())
        tallies.append(stats.tallies.numpy())
        if channel_bins:
            channel_hist.append(slots(stats.hist))
        if bins:
            hist.append(slots(channel_stats(x, None, bins=bins).hist))
    offsets = np.cumsum([0, *(site.channels for site in sites)], dtype=np.int64)
    return StepRecord(
        step=step,
        rank=rank,
        sites=tuple(sites),
        observed=np.ones(len(sites), np.int64),
        offsets=offsets,
        moments=np.concatenate(rows),
        tallies=np.concatenate(tallies),
        bins=bins,
        hist=SparseCounts.from_dense(np.concatenate(hist))
        if bins
        else SparseCounts.empty(len(sites)),
        channel_bins=channel_bins,
        channel_hist=SparseCounts.from_dense(np.concatenate(channel_hist))
        if channel_bins
        else SparseCounts.empty(int(offsets[-1])),
    )


def sample(step: int = 0, rank: int = 0, **kwargs: Any) -> StepRecord:
    """A record of `tensors`, different from step to step and rank to rank."""
    return record_of(tensors(seed=step + 1000 * rank), step, rank, **kwargs)


def slots(hist: Histogram | None) -> Any:
    """Underflow, bins and overflow of every channel, int64 [C, slots]."""
    assert hist is not None
    columns = (hist.underflow.unsqueeze(1), hist.counts, hist.overflow.unsqueeze(1))
    return torch.cat(columns, 1).numpy()


def assert_same(actual: StepRecord, expected: StepRecord, rtol: float = 0.0) -> None:
    """Equal in everything; moments to `rtol`, and m2, which is stored as a variance, to 1e-15."""
    for field in fields(StepRecord):
        mine, other = getattr(actual, field.name), getattr(expected, field.name)
        if isinstance(mine, SparseCounts):
            for part in fields(SparseCounts):
                assert_equal_arrays(getattr(mine, part.name), getattr(other, part.name))
        elif field.name == "moments":
            assert mine.shape == other.shape
            one, two = (np.delete(each, 1, axis=1) for each in (mine, other))
            np.testing.assert_allclose(one, two, rtol=rtol, atol=0)
            np.testing.assert_allclose(mine[:, 1], other[:, 1], rtol=max(rtol, 1e-15), atol=0)
        elif isinstance(mine, np.ndarray):
            assert_equal_arrays(mine, other)
        else:
            assert mine == other


OLD_SUMS = 1e-6
"""`rtol` where the expected moments were summed by an older kernel, in another order."""


def assert_equal_arrays(actual: Any, expected: Any) -> None:
    """Of one dtype and shape, and equal."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected, strict=True)
