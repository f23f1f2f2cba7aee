"""What training asks of the flush thread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hookstats.arena.flag import Flag
from hookstats.records.record import StepRecord
from hookstats.watching.scalars import StepScalars


class ClosedStep(Protocol):
    """A step that an arena closed. The flush thread calls all methods."""

    @property
    def is_small(self) -> bool:
        """Whether whoever closes steps copies each out, as that takes little time."""

    @property
    def nbytes(self) -> int:
        """The bytes that were copied out so far."""

    def take_out(self) -> None:
        """Copy the step out, and give the buffers back; `to_record` does so if nobody did."""

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy the step out."""

    def release(self) -> None:
        """Give the buffers back; called once, after `to_record`, whether that failed or not."""


class Step(NamedTuple):
    """Record a closed step, with the scalars that it has so far."""

    snapshot: ClosedStep
    step: int
    scalars: StepScalars | None


class Scalars(NamedTuple):
    """Record the scalars of complete steps."""

    steps: Sequence[StepScalars]


class Skip(NamedTuple):
    """Note that a step is lost, and why: the reason of a gap, see docs/format.md."""

    step: int
    reason: str


class Renumber(NamedTuple):
    """The training gives a number itself: steps that come may have those of earlier ones."""


class Drain(NamedTuple):
    """Say when all that came before is recorded, if `disk` on the disk."""

    done: Flag
    disk: bool


class Close(NamedTuple):
    """End the run and the thread."""

    coverage: Mapping[str, Any] | None


Request = Step | Scalars | Skip | Renumber | Drain | Close
