"""Whole: the records of all ranks of a run as those of the whole model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from hookstats.records.ranks import Merger
from hookstats.records.record import StepRecord
from hookstats.runs.parts import Parts


class Whole:
    """Merges the records of all ranks, step by step, when they are read."""

    def __init__(self, parts: Parts, read: Callable[[int, int], StepRecord]) -> None:
        """read: the record of a step and rank; a KeyError where there is none any more."""
        self._parts = parts
        self._read = read
        self._merge = Merger()

    def steps(self) -> list[int]:
        """The steps that any rank recorded, ascending."""
        return sorted(set().union(*self._parts.index.values()))

    def ranks(self, step: int) -> list[int]:
        """The ranks that recorded a step."""
        return [rank for rank, records in self._parts.index.items() if step in records]

    def record(self, step: int) -> StepRecord:
        """What the ranks that recorded a step observed in it, merged.

        Raises:
            KeyError: no rank has the step.
        """
        answers = [self._answer(step, rank) for rank in self.ranks(step)]
        found = [answer for answer in answers if isinstance(answer, StepRecord)]
        if not found:
            missing = [answer for answer in answers if isinstance(answer, KeyError)]
            raise missing[-1] if missing else KeyError(f"step {step}: no rank has it")
        return found[0] if self._parts.is_whole() else self._merge(found)

    def _answer(self, step: int, rank: int) -> StepRecord | KeyError:
        """What a rank observed in a step; an error if that is deleted or left out since."""
        try:
            return self._read(step, rank)
        except KeyError as error:
            return error

    def records(self) -> Iterator[StepRecord]:
        """The records of all steps, but those that are deleted or left out meanwhile."""
        for step in self.steps():
            with suppress(KeyError):
                yield self.record(step)
