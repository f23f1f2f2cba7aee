"""MergedRecords: the records of all ranks of a run as those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from hookstats.records.ranks import Merger
from hookstats.records.record import StepRecord
from hookstats.runs.encode import encode_channels, encode_tensors
from hookstats.runs.format import CHANNELS, require_pyarrow
from hookstats.runs.index import Where
from hookstats.runs.parts import Parts


class MergedRecords:
    """Merges what all ranks recorded, step by step, when it is read."""

    def __init__(self, parts: Parts, where: Callable[[int, int], Where]) -> None:
        """where: the place of the record of a step and rank; a KeyError where there is none."""
        self._parts = parts
        self._where = where
        self._merger = Merger()

    def steps(self) -> list[int]:
        """The steps that any rank recorded, ascending."""
        return sorted(set().union(*self._parts.index.values()))

    def ranks(self, step: int) -> list[int]:
        """The ranks that recorded a step."""
        return [rank for rank, records in self._parts.index.items() if step in records]

    def record(self, step: int, *, channels: bool = True) -> StepRecord:
        """What the ranks that recorded a step observed in it, merged; of the only rank of a run, or
        of the one that is read, its record as it is.

        channels: whether to read the channels, too, where they were kept.

        Raises:
            KeyError: no rank has the step.
        """
        ranks = self.ranks(step) or list(self._parts.index) or [0]
        answers = [self._read(step, rank, channels) for rank in ranks]
        found = [answer for answer in answers if not isinstance(answer, KeyError)]
        if not found:
            raise [answer for answer in answers if isinstance(answer, KeyError)][-1]
        return found[0] if self._parts.is_of_one_rank() else self._merger(found)

    def _read(self, step: int, rank: int, channels: bool) -> StepRecord | KeyError:
        """A rank's record; an error if it was deleted or left out since."""
        while True:
            try:
                where = self._where(step, rank)
            except KeyError as error:
                return error
            try:
                return self._parts.record(where, channels=channels)
            except (OSError, ValueError) as error:
                if not self._parts.is_gone(where, error):
                    raise

    def tables(self, folder: str) -> Iterator[tuple[StepRecord, Any]]:
        """The records of all steps, except steps deleted or left out meanwhile, and one of the two
        tables of each as a pyarrow.Table."""
        index = self._parts.channels if folder == CHANNELS else self._parts.index
        encode = encode_channels if folder == CHANNELS else encode_tensors
        for step in sorted(set().union(*index.values())):
            with suppress(KeyError):
                record = self.record(step, channels=folder == CHANNELS)
                if folder != CHANNELS or record.channels is not None:
                    yield record, require_pyarrow().table(encode([record]))
