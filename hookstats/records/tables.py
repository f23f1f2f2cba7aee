"""merged(): the rows of several tables, merged into groups."""

from __future__ import annotations

from collections.abc import Sequence

from hookstats.records.record import Table
from hookstats.records.sparse import Int64, SparseCounts
from hookstats.records.weighing import added
from hookstats.stats.merge import joined_rows, merge
from hookstats.stats.state import COUNT


def merged(tables: Sequence[Table], group_of_row: Int64, groups: int, *, sampled: bool) -> Table:
    """A row for each group: what the rows of the tables, one table after the other, merge to.

    Args:
        group_of_row: int64, the group of each row; -1: in none.
        sampled: whether the histograms count a sample: each then weighs as many values as it has.
    """
    tallies = joined_rows([table.tallies.T for table in tables])
    moments = joined_rows([table.moments.T for table in tables])
    states = merge(moments, tallies, group_of_row, groups)
    hists = [table.hist for table in tables]
    hist = SparseCounts.empty(groups)
    if any(len(each.slots) for each in hists):
        hist = added(hists, tallies[:, COUNT], group_of_row, groups, sampled=sampled)
    return Table(states[0].T, states[1].T, hist)
