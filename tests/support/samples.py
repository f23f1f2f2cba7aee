"""Step records of real tensors, for the tests of what reads, writes and shows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hookstats.kernels.of_tensor import channel_stats
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.histogram import Histogram
from hookstats.stats.merge import merge
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
    sites = []
    tensors, channels = _Rows(bins), _Rows(channel_bins)
    for (name, kind), (x, dim) in data.items():
        stats = channel_stats(x, dim, bins=channel_bins)
        sites.append(
            SiteInfo(name, kind, len(stats), dim, tuple(x.shape), str(x.dtype).split(".")[1])
        )
        channels.add(stats)
        hist = None if bins is None else channel_stats(x, None, bins=bins).hist
        tensors.add(stats.per_tensor(), hist)
    return StepRecord(
        step=step,
        rank=rank,
        sites=tuple(sites),
        observed=np.ones(len(sites), np.int64),
        tensors=tensors.table(),
        channels=channels.table(),
        bins=bins,
        channel_bins=channel_bins,
    )


class _Rows:
    """The rows of a table, as they come."""

    def __init__(self, bins: Bins | None) -> None:
        self._bins = bins
        self._moments = [identity_moments(0).numpy()]
        self._tallies = [np.empty((0, 5), np.int64)]
        self._hist = [np.empty((0, bins.slots if bins else 0), np.int64)]

    def add(self, stats: ChannelStats, hist: Histogram | None = None) -> None:
        self._moments.append(stats.moments.numpy())
        self._tallies.append(stats.tallies.numpy())
        if self._bins is not None:
            self._hist.append(slots(stats.hist if hist is None else hist))

    def table(self) -> Table:
        moments, tallies = (np.concatenate(each).T for each in (self._moments, self._tallies))
        hist = SparseCounts.empty(moments.shape[1])
        if self._bins is not None:
            hist = sparse_of(np.concatenate(self._hist))
        return Table(moments.copy(), tallies.copy(), hist)


def sparse_of(dense: Any) -> SparseCounts:
    """The nonzero entries of ``dense``, int64 [rows, slots]."""
    rows, columns = np.nonzero(dense)
    offsets = np.searchsorted(rows, np.arange(len(dense) + 1))
    slots = columns.astype(np.int32)
    return SparseCounts(offsets.astype(np.int64), slots, dense[rows, columns].astype(np.int64))


def sample(step: int = 0, rank: int = 0, **kwargs: Any) -> StepRecord:
    """A record of `tensors`, different from step to step and rank to rank."""
    return record_of(tensors(seed=step + 1000 * rank), step, rank, **kwargs)


def changed(record: StepRecord, moments: Any = None, tallies: Any = None) -> StepRecord:
    """The record with other states of its channels, [R, 5] each, and of its tensors as follows."""
    moments = record.moments if moments is None else moments
    tallies = record.tallies if tallies is None else tallies
    owners = np.repeat(np.arange(len(record)), np.diff(record.offsets))
    of_tensors = merge(moments, tallies, owners, len(record))
    return replace(
        record,
        tensors=Table(of_tensors[0].T, of_tensors[1].T, record.hist),
        channels=Table(moments.T, tallies.T, record.rows.hist),
    )


def slots(hist: Histogram | None) -> Any:
    """Underflow, bins and overflow of every channel, int64 [C, slots]."""
    assert hist is not None
    columns = (hist.underflow.unsqueeze(1), hist.counts, hist.overflow.unsqueeze(1))
    return torch.cat(columns, 1).numpy()


def assert_same(actual: StepRecord, expected: StepRecord, rtol: float = 0.0) -> None:
    """Equal in everything; moments to `rtol`. Only what there is of channels is compared."""
    for name in ("step", "rank", "sites", "bins", "channel_bins", "scalars"):
        assert getattr(actual, name) == getattr(expected, name), name
    assert_equal_arrays(actual.observed, expected.observed)
    _assert_same_table(actual.tensors, expected.tensors, rtol)
    assert (actual.channels is None) == (expected.channels is None)
    if actual.channels is not None and expected.channels is not None:
        _assert_same_table(actual.channels, expected.channels, rtol)


def _assert_same_table(actual: Table, expected: Table, rtol: float) -> None:
    assert actual.moments.shape == expected.moments.shape
    np.testing.assert_allclose(actual.moments, expected.moments, rtol=rtol, atol=0)
    assert_equal_arrays(actual.tallies, expected.tallies)
    for name in ("offsets", "slots", "counts"):
        assert_equal_arrays(getattr(actual.hist, name), getattr(expected.hist, name))


def assert_equal_arrays(actual: Any, expected: Any) -> None:
    """Of one dtype and shape, and equal."""
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected, strict=True)
