"""Whole: the records of all ranks of a run as those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar

from hookstats.records.placement import LayoutError
from hookstats.records.ranks import Merger, Step
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.tensors import of_tensors
from hookstats.runs.index import Where
from hookstats.runs.parts import Parts

_T = TypeVar("_T")


class Whole:
    """Merges what all ranks recorded, step by step, when it is read; one rank at a time."""

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

    def record(self, step: int) -> StepRecord:
        """What the ranks that recorded a step observed in it, merged; of the only rank of a run, or
        of the one that is read, its record as it is.

        Raises:
            KeyError: no rank has the step.
        """
        if self._parts.is_whole():
            (rank,) = self.ranks(step) or self._parts.index or (0,)
            return self._read(step, rank, self._parts.record)[1]
        while True:
            ranks = self.ranks(step) or self._parts.index or (0,)
            answers = [self._answer(step, rank) for rank in ranks]
            found = [answer for answer in answers if not isinstance(answer, KeyError)]
            if not found:
                raise [answer for answer in answers if isinstance(answer, KeyError)][-1]
            with suppress(_GoneError):
                return self._merged(step, *zip(*found, strict=True))

    def _merged(
        self, step: int, places: Sequence[Where], sites: tuple[tuple[SiteInfo, ...], ...]
    ) -> StepRecord:
        parts = self._parts
        if any(site.merged for of_rank in sites for site in of_rank):
            return self._merger([of_tensors(self._at(where, parts.record)) for where in places])
        about = Step(step, parts.bins, parts.channel_bins)
        observed = (self._at(where, parts.observed) for where in places)
        try:
            return self._merger.merge(about, sites, observed)
        except LayoutError as error:
            with parts.naming(places[error.record].part):
                raise

    def _at(self, where: Where, read: Callable[[Where], _T]) -> _T:
        try:
            return read(where)
        except (OSError, ValueError) as error:
            if self._parts.is_gone(where, error):
                raise _GoneError from error
            raise

    def _answer(self, step: int, rank: int) -> tuple[Where, tuple[SiteInfo, ...]] | KeyError:
        """Where a rank's record is, and its sites; an error if it is deleted or left out since."""
        try:
            return self._read(step, rank, self._parts.sites)
        except KeyError as error:
            return error

    def _read(self, step: int, rank: int, read: Callable[[Where], _T]) -> tuple[Where, _T]:
        """Where a record is, and what is read of it."""
        while True:
            where = self._where(step, rank)
            try:
                return where, read(where)
            except (OSError, ValueError) as error:
                if not self._parts.is_gone(where, error):
                    raise

    def records(self) -> Iterator[StepRecord]:
        """The records of all steps, but those that are deleted or left out meanwhile."""
        for step in self.steps():
            with suppress(KeyError):
                yield self.record(step)


class _GoneError(Exception):
    """A record that was there is not any more."""
