"""Detail: which steps keep their channels on the disk, and which their whole tensors alone."""

from __future__ import annotations

from hookstats.records.record import StepRecord
from hookstats.records.tensors import of_tensors
from hookstats.rules import Monitor


class Detail:
    """Decides step by step, once the rules have seen the step.

    A step keeps its channels if its number is a multiple of `every`, if rules found something in it
    that is worse than a note, and if they did so in one of the `after` recorded steps before.
    """

    def __init__(self, monitor: Monitor, every: int, after: int) -> None:
        self.monitor = monitor
        self._every = every
        self._after = after
        self._seen = 0  # alerts
        self._left = 0  # steps that keep their channels, because of an alert before

    def of(self, record: StepRecord) -> StepRecord:
        """What is to be written of a record."""
        new = self.monitor.alerts[self._seen :]
        self._seen += len(new)
        self._left -= 1
        if any(alert.level for alert in new):
            self._left = self._after
        keeps = record.step % self._every == 0 or self._left >= 0
        return record if keeps else of_tensors(record)
