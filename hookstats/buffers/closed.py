"""ClosedStep: one closed step, which the recorder makes a record of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hookstats.buffers.device import Drained, Part
from hookstats.buffers.lock import lock
from hookstats.records.merge import joined
from hookstats.records.record import SiteInfo, StepRecord, Table
from hookstats.records.sparse import Int64, rows_of
from hookstats.stats.bins import Bins
from hookstats.stats.merge import offsets_of


class ClosedStep:
    """One closed step of a double buffer: what the host has of it, and what devices still have.

    The host's part is drained as the step is closed. Draining other devices waits for them, which
    the training never does: the recorder does it. Until then their buffers are lent to the step.
    """

    def __init__(
        self,
        infos: tuple[SiteInfo, ...],
        parts: Sequence[Part],
        order: Int64,
        unread: tuple[str, ...],
        bins: Bins | None,
        channel_bins: Bins | None,
    ) -> None:
        """infos: what is said of the double buffer's sites now; it may change later.

        order: int64, when each site ran first in the step, by index in the double buffer; 0 where
        compiled graphs alone did. unread: as `StepRecord.unread`.
        """
        self._infos = infos
        self._parts = parts
        self._order = order
        self._unread = unread
        self._bins = bins
        self._channel_bins = channel_bins
        self._drained: list[Drained | None] = [None] * len(parts)
        self._lock = lock()  # held while devices are drained
        self.is_free = not any(part.ranges.buffer.waits for part in parts)
        """Whether the buffers that were lent to the step were given back, empty."""

    def drain_host(self) -> None:
        """Drain the host's part; called under the double buffer's lock."""
        for i, part in enumerate(self._parts):
            if not part.ranges.buffer.waits:
                self._drained[i] = part.ranges.buffer.drain(part)

    def drain(self) -> None:
        """Drain the devices, and give their buffers back, whether that succeeds or not."""
        with self._lock:
            if self.is_free:
                return
            try:
                for i, part in enumerate(self._parts):
                    if self._drained[i] is None:
                        self._drained[i] = part.ranges.buffer.drain(part)
            finally:
                self.release()

    def release(self) -> None:
        """Give the buffers back, empty: what was not drained is lost."""
        with self._lock:
            if self.is_free:
                return
            for part, drained in zip(self._parts, self._drained, strict=True):
                if drained is None:
                    part.ranges.buffer.clear(part.ranges, part.buffer)
            self.is_free = True

    @property
    def nbytes(self) -> int:
        return sum([drained.nbytes for drained in self._drained if drained is not None])

    def to_record(self, step: int, rank: int) -> StepRecord:
        """The statistics of the sites that were observed in the step.

        Raises:
            RuntimeError: the step was released before it was drained.
        """
        self.drain()
        found = [drained for drained in self._drained if drained is not None]
        if len(found) < len(self._parts):
            raise RuntimeError("the step was given up before it was drained")
        infos, parts = self._infos, self._parts
        order = _joined([part.ranges.sites for part in parts])
        if len(parts) > 1:  # with one part, rows are in the order of `infos`
            infos = tuple([infos[site] for site in order])
        observed = _joined([drained.observed for drained in found])
        tables = [drained.tables() for drained in found]
        tensors = Table.joined([tensors for tensors, _ in tables])
        rows = Table.joined([channels for _, channels in tables])
        kept = _kept(observed, self._order, order)
        if len(kept) < len(infos) or (np.diff(kept) < 0).any():
            ends = offsets_of([site.channels for site in infos])
            tensors, rows = tensors.chosen(kept), rows.chosen(rows_of(ends, kept))
            infos, observed = tuple([infos[i] for i in kept.tolist()]), observed[kept]
        record = StepRecord(
            step=step,
            rank=rank,
            sites=infos,
            observed=observed,
            tensors=tensors,
            channels=rows,
            bins=self._bins,
            channel_bins=self._channel_bins,
            unread=self._unread,
        )
        return record if len(parts) < 2 else joined(record)


# Few calls of NumPy and torch: every long call releases the GIL, which the training has to yield to
# get it back.


def _kept(observed: Int64, order: Int64, sites: Int64) -> Int64:
    """The places of the sites that were observed, in the order in which these ran.

    A site that ran in compiled graphs alone stands behind the site before it.

    order: by site, when it ran; 0: unknown. sites: by index there.
    """
    known = np.maximum.accumulate(np.where(order > 0, np.arange(len(order)), 0))
    ran = order[known][sites]
    kept = np.flatnonzero(observed)
    return kept[np.lexsort((sites[kept], ran[kept]))]


def _joined(parts: Sequence[Int64]) -> Int64:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int64), *parts])
