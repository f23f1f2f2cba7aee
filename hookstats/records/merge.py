"""merged(): the rows of tables in groups; joined(): the sites of several devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hookstats.records.keys import Key
from hookstats.records.record import StepRecord, Table
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.stats.bins import is_sampled
from hookstats.stats.merge import merge, offsets_of
from hookstats.stats.sample import apportioned
from hookstats.stats.state import COUNT


def joined(record: StepRecord) -> StepRecord:
    """`record` with each name and kind once: states of the same name and kind are merged.

    Sites of the same name and kind have the same number of channels.
    """
    numbers: dict[Key, int] = {}
    site_of = np.array(
        [numbers.setdefault((site.name, site.kind), len(numbers)) for site in record.sites],
        np.int64,
    )
    if len(numbers) == len(record.sites):
        return record
    _, firsts = np.unique(site_of, return_index=True)
    observed = np.zeros(len(numbers), np.int64)
    np.add.at(observed, site_of, record.observed)
    channels = record.channels
    if channels is not None:
        lengths = np.diff(record.offsets)
        starts = offsets_of(lengths[firsts])
        shift = starts[site_of] - record.offsets[:-1]
        row_of = np.arange(channels.rows) + np.repeat(shift, lengths)
        sampled = is_sampled(record.channel_bins)
        channels = merged([channels], row_of, int(starts[-1]), sampled=sampled)
    return replace(
        record,
        sites=tuple([record.sites[first] for first in firsts.tolist()]),
        observed=observed,
        tensors=merged([record.tensors], site_of, len(numbers), sampled=is_sampled(record.bins)),
        channels=channels,
    )


def merged(tables: Sequence[Table], group_of_row: Int64, groups: int, *, sampled: bool) -> Table:
    """A row for each group: what the rows of the tables, one table after the other, merge to.

    Args:
        group_of_row: int64, the group of each row; -1: in none.
        sampled: whether the histograms count a sample: each then weighs as many values as it has.
    """
    moments, tallies, hist = Table.joined(tables)
    states = merge(moments.T, tallies.T, group_of_row, groups)
    if not sampled:
        return Table(states[0].T, states[1].T, hist.added(group_of_row, groups))
    totals = np.zeros(groups, np.int64)
    kept = group_of_row >= 0
    np.add.at(totals, group_of_row[kept], counted_of(hist)[kept])
    weighed = estimated(hist, tallies[COUNT]).added(group_of_row, groups)
    return Table(states[0].T, states[1].T, _rounded(weighed, totals))


def counted_of(hist: SparseCounts) -> Int64:
    """int64 [rows]: how many values were counted."""
    counted: Int64 = np.diff(offsets_of(hist.counts)[hist.offsets])
    return counted


def estimated(hist: SparseCounts, values: Int64) -> SparseCounts:
    """How many values each slot would have if all were counted; the counts are float64.

    values: int64 [rows], the finite values of each row.
    """
    counted = counted_of(hist)
    weight = values / np.maximum(counted, 1)
    estimates: Any = hist.counts * np.repeat(weight, np.diff(hist.offsets))  # float64
    return SparseCounts(hist.offsets, hist.slots, estimates)


def _rounded(estimates: SparseCounts, counted: Int64) -> SparseCounts:
    """Integers in proportion to `estimates` that add up to what was `counted`, int64 [rows]."""
    values: Any = estimates.counts  # float64
    counts = apportioned(values, estimates.offsets, counted)
    kept = counts > 0
    return SparseCounts(offsets_of(kept)[estimates.offsets], estimates.slots[kept], counts[kept])
