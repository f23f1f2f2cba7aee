"""index_of(): where the valid records of a run are, by the names of its parts and their footers."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import NamedTuple

from hookstats.runs.format import PartName
from hookstats.runs.part_file import Footer


class Where(NamedTuple):
    """The rows of one record in one table."""

    part: PartName
    step: int
    group: int
    """The row group; without rows, there is nothing to read."""
    first: int
    """The first row of the record in the part."""
    rows: int


Index = dict[int, dict[int, Where]]
"""Where records are, by rank and step, in order of writing."""


Bounds = dict[tuple[int, int], float]
"""By rank and number of a part, up to which step, exclusively, its rows are valid."""


def bounds(names: Iterable[PartName]) -> Bounds:
    """The bounds of parts, which follow from their names.

    Training may go back to a checkpoint: a part replaces what the rank's earlier parts have from
    the step in its name on. So does a part of a later session what all ranks' parts of earlier
    sessions have, as a rank that is there no more replaces nothing itself.
    """
    ordered = sorted(names)
    begins: dict[int, int] = {}
    for name in ordered:
        begins[name.session] = min(name.step, begins.get(name.session, name.step))
    found: Bounds = {}
    rank, replaced = -1, math.inf
    for name in reversed(ordered):
        if name.rank != rank:
            rank, replaced = name.rank, math.inf
        later = [step for session, step in begins.items() if session > name.session]
        found[name[:2]] = min(replaced, *later, math.inf)
        replaced = min(replaced, name.step)
    return found


def index_of(footers: Mapping[PartName, Footer], valid: Bounds) -> Index:
    """Where the valid records are.

    footers: in order of rank and writing; valid: the `bounds` of parts.
    """
    index: Index = {}
    for name, footer in footers.items():
        records = index.setdefault(name.rank, {})
        ends = list(accumulate(footer.groups))
        # A kill may leave channels of a part without its tensors.
        bound = valid.get(name[:2], -math.inf)
        start = 0
        for step, rows in footer.records:
            if step < bound:
                records[step] = Where(name, step, bisect_right(ends, start), start, rows)
            start += rows
    return index
