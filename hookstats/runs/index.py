"""index_of(): where the valid records of a run are, by what the footers of its parts say."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple

from hookstats.runs.footer import Footer, Session
from hookstats.runs.format import PartName


class Where(NamedTuple):
    """The rows of one record."""

    part: PartName
    step: int
    group: int
    """The row group; without rows, there is nothing to read."""
    first: int
    """The first row of the record in the row group."""
    rows: int


def index_of(footers: Mapping[PartName, Footer]) -> dict[int, dict[int, Where]]:
    """Where the valid records are, by rank and step, in order of writing."""
    index: dict[int, dict[int, Where]] = {}
    newest = {name.rank: footer for name, footer in footers.items()}
    rewinds = {rank: deque(footer.rewinds) for rank, footer in newest.items()}
    numbers: dict[int, dict[int, int]] = {}  # by rank and step
    number = 0  # of a record of the rank
    for name, footer in footers.items():
        records = index.setdefault(name.rank, {})
        number = footer.written or (number if records else 0)
        ends = list(accumulate(footer.groups))
        start = 0
        for step, rows in footer.records:
            back = step
            while rewinds[name.rank] and rewinds[name.rank][0][0] <= number:
                back = min(back, rewinds[name.rank].popleft()[1])
            while records and next(reversed(records)) >= back:
                records.popitem()
            group = bisect_right(ends, start) if rows else 0
            first = start - (ends[group - 1] if group else 0) if rows else 0
            records[step] = Where(name, step, group, first, rows)
            numbers.setdefault(name.rank, {})[step] = number
            start += rows
            number += 1
    _void_absent(index, numbers, newest)
    return index


def _void_absent(
    index: dict[int, dict[int, Where]],
    numbers: Mapping[int, Mapping[int, int]],
    newest: Mapping[int, Footer],
) -> None:
    """Take out what ranks recorded before a process group in which they recorded nothing, from the
    first step of that group on."""
    begins: dict[str, int] = {}
    for footer in newest.values():
        for i, session in enumerate(footer.sessions):
            end = footer.sessions[i + 1].number if i + 1 < len(footer.sessions) else math.inf
            back = (step for number, step in footer.rewinds if session.number <= number < end)
            first = min([session.step, *back])
            begins[session.started] = min(first, begins.get(session.started, first))
    order = _in_order([footer.sessions for footer in newest.values()])
    for rank, records in index.items():
        sessions = newest[rank].sessions
        own = [session.started for session in sessions]
        starts = [session.number for session in sessions]
        for started, first in begins.items():
            if started in own:
                continue
            for step in [step for step in records if step >= first]:
                place = bisect_right(starts, numbers[rank][step])
                if place == 0 or order[own[place - 1]] < order[started]:
                    del records[step]


def _in_order(found: Iterable[Sequence[Session]]) -> dict[str, int]:
    """The place in time of each session: as the ranks that were in several know, whatever the clock
    said; else by its text."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    names: set[str] = set()
    for sessions in found:
        own = list(dict.fromkeys(session.started for session in sessions))
        names.update(own)
        for started in own:
            sorter.add(started)
        for before, after in pairwise(own):
            sorter.add(after, before)
    with suppress(CycleError):  # ranks contradict each other: the text says what remains
        sorter.prepare()
    ready = list(sorter.get_ready())
    heapify(ready)
    order: list[str] = []
    while ready:
        order.append(heappop(ready))
        sorter.done(order[-1])
        for started in sorter.get_ready():
            heappush(ready, started)
    order += sorted(names.difference(order))
    return {started: place for place, started in enumerate(order)}
