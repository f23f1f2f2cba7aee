"""ChannelKeeper: which recorded steps keep their channels on the disk."""

from __future__ import annotations

from collections import deque

from hookstats.runs.encode import Rows

CHOICES = ("incidents", "always", "never")
"""What `channels` may be, see `ChannelKeeper`."""
FIRST = 8
"""So many recorded steps at the beginning keep their channels, ..."""
EVERY = 16
"""... and one of so many later ones, ..."""
BEFORE = 4
"""... and so many before an incident, beside its own, ..."""
AFTER = 10
"""... and so many after it."""
MOST_BYTES = 64 << 20
"""The most bytes of channels that wait for an incident, ..."""
_MOST_STEPS = 128
"""... and the most steps: rules may be some dozens of steps behind."""


class ChannelKeeper:
    """Decides step by step: with "incidents" the first steps, one of `EVERY`, and those around
    incidents keep their channels; with "always" all, with "never" none.

    The channels of the last steps wait in memory, for an incident that may come.
    """

    def __init__(self, channels: str) -> None:
        self._mode = channels
        self._seen = 0
        self._left = 0  # steps after an incident
        # The last steps, and their channels where these are not written.
        self._recent: deque[tuple[int, Rows | None]] = deque(maxlen=_MOST_STEPS)
        self._bytes = 0

    def take(self, rows: Rows) -> list[Rows]:
        """The channels that are to be written now that a step has these."""
        if self._mode != "incidents":
            return [rows] if self._mode == "always" else []
        before = self._recent[-1][0] if self._recent else None
        if before is not None and rows.step <= before:  # training went back
            self._recent.clear()
            self._bytes = 0
        stride = 1 if before is None else max(1, rows.step - before)
        # By the number of the step, so that all ranks keep the same ones.
        is_due = rows.step // stride % EVERY == 0
        self._seen += 1
        self._left -= 1
        is_kept = self._seen <= FIRST or self._left >= 0 or is_due
        if len(self._recent) == _MOST_STEPS:
            self._forget(0)
        self._recent.append((rows.step, None if is_kept else rows))
        self._bytes += 0 if is_kept else rows.nbytes
        place = 0
        while self._bytes > MOST_BYTES:
            self._forget(place)
            place += 1
        return [rows] if is_kept else []

    def _forget(self, place: int) -> Rows | None:
        """Have the channels of a recent step wait no more; returns them."""
        step, rows = self._recent[place]
        if rows is not None:
            self._recent[place] = step, None
            self._bytes -= rows.nbytes
        return rows

    def incident(self, step: int) -> list[Rows]:
        """The channels that are to be written now that an incident is known to begin in a step."""
        if self._mode != "incidents":
            return []
        before = sum([each <= step for each, _ in self._recent])
        first, end = max(0, before - 1 - BEFORE), before + AFTER
        self._left = max(self._left, end - len(self._recent))
        places = range(first, min(end, len(self._recent)))
        return [rows for rows in map(self._forget, places) if rows is not None]
