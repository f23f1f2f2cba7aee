"""A record that has sites several times, once per device, against a record of all their tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.samples import BINS, CHANNEL_BINS, assert_equal_arrays, record_of
from torch import Tensor

from hookstats.records.merge import joined
from hookstats.records.record import StepRecord, Table
from hookstats.records.sparse import SparseCounts
from hookstats.stats.bins import Bins

Tensors = dict[tuple[str, str], tuple[Tensor, int | None]]


def tensors(seed: int) -> Tensors:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(20, 3, generator=generator)
    x[0, 0], x[1, 1], x[2, 2] = torch.nan, torch.inf, 0.0
    return {
        ("a", "output"): (x, 1),
        ("a", "grad_output"): (torch.randn(7, generator=generator) * 1e3, None),
        ("b", "output"): (torch.randn(5, 4, generator=generator), 1),
    }


def one_after_the_other(first: StepRecord, second: StepRecord) -> StepRecord:
    """As a double buffer with two devices has them."""

    def table(one: Table | None, other: Table | None) -> Table:
        assert one is not None
        assert other is not None
        return Table(
            np.concatenate((one.moments, other.moments), axis=1),
            np.concatenate((one.tallies, other.tallies), axis=1),
            SparseCounts.joined([one.hist, other.hist]),
        )

    return StepRecord(
        step=first.step,
        rank=first.rank,
        sites=first.sites + second.sites,
        observed=np.concatenate((first.observed, second.observed)),
        tensors=table(first.tensors, second.tensors),
        channels=table(first.channels, second.channels),
        bins=first.bins,
        channel_bins=first.channel_bins,
    )


@pytest.mark.parametrize("missing", [None, ("a", "output"), ("b", "output")])
@pytest.mark.parametrize(
    ("bins", "channel_bins"), [(BINS, CHANNEL_BINS), (None, CHANNEL_BINS), (None, None)], ids=str
)
def test_they_are_what_one_device_would_have_seen(
    missing: tuple[str, str] | None, bins: Bins | None, channel_bins: Bins | None
) -> None:
    here, there = tensors(0), tensors(1)
    if missing is not None:
        del there[missing]
    record = one_after_the_other(
        record_of(here, bins=bins, channel_bins=channel_bins),
        record_of(there, bins=bins, channel_bins=channel_bins),
    )
    together: Tensors = {
        key: (torch.cat((x, there[key][0])) if key in there else x, dim)
        for key, (x, dim) in here.items()
    }
    got = joined(record)
    expected = record_of(together, bins=bins, channel_bins=channel_bins)
    assert list(got) == list(expected)
    assert got.observed.tolist() == [1 if key == missing else 2 for key in got]
    for name in ("offsets", "tallies"):
        assert_equal_arrays(getattr(got, name), getattr(expected, name))
    for name in ("tensors", "rows"):
        for part in ("offsets", "slots", "counts"):
            mine, other = (getattr(getattr(r, name).hist, part) for r in (got, expected))
            assert_equal_arrays(mine, other)
    np.testing.assert_allclose(got.moments, expected.moments, rtol=1e-5, atol=1e-6)
    of_tensors = got.tensors.moments, expected.tensors.moments
    np.testing.assert_allclose(*of_tensors, rtol=1e-5, atol=1e-6)


def test_a_record_of_one_device_is_left_as_it_is() -> None:
    record = record_of(tensors(0))
    assert joined(record) is record
