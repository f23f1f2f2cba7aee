"""replay(): the alerts that rules give of a stored run; Replay: the same of a run that grows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from hookstats.records.alerts import Alert
from hookstats.records.norms import unread
from hookstats.records.record import StepRecord
from hookstats.rules.defaults import Rules
from hookstats.rules.monitor import Monitor
from hookstats.rules.setup import Setup

if TYPE_CHECKING:
    from hookstats.runs.run import Run


class Replay:
    """Rules that look at what a run has, in order of steps: `look`, `examine` records, `finish`.

    Of a run that grows these may be called again, for what is new. Scalars count once, whether
    they were stored before the record of their step, after it, or without one. No action is taken.

    Raises:
        ValueError: rules stands for no rules.
    """

    def __init__(self, run: Run, rules: Rules) -> None:
        setup = Setup.from_header(run.header)
        self.monitor = Monitor(rules, setup, interval=0, unread=unread(run.coverage))
        """What was found: its `alerts` and `failures`."""
        self._run = run
        self._examined = -1  # the last recorded step that the rules saw
        self._heard = -1  # the last step whose scalars they saw
        self._alone: list[int] = []  # further steps with scalars, the last one first

    def skip(self, step: int) -> None:
        """Leave out the steps up to this one."""
        self._examined = max(self._examined, step)
        self._heard = max(self._heard, step)

    def look(self) -> None:
        """See which steps have scalars, but no record that is still to be examined."""
        recorded = set(self._run.steps)
        self._alone = [
            step
            for step in reversed(self._run.scalars.steps)
            if step > self._heard and (step not in recorded or step <= self._examined)
        ]

    def examine(self, record: StepRecord) -> None:
        """Check the next recorded step, and before it the scalars of the steps before it."""
        self._examine_scalars(record.step)
        if record.step <= self._heard:
            record = replace(record, scalars={})
        elif record.scalars:
            self._heard = record.step
        self._examined = record.step
        self.monitor.examine(record)

    def finish(self) -> None:
        """Check the scalars of the steps after the last recorded one."""
        self._examine_scalars(None)

    def _examine_scalars(self, before: int | None) -> None:
        while self._alone and (before is None or self._alone[-1] < before):
            self._heard = self._alone.pop()
            self.monitor.examine_scalars(self._heard, self._run.scalars.at(self._heard))


def replayed(
    run: Run,
    rules: Rules = "default",
    shown: Callable[[list[int]], Iterable[int]] = iter,
) -> Monitor:
    """The monitor that has seen what a run has, as `replay` says: its alerts, and its failures."""
    found = Replay(run, rules)
    found.look()
    for step in shown(run.steps):
        found.examine(run[step])
    found.finish()
    return found.monitor


def replay(
    run: Run,
    rules: Rules = "default",
    shown: Callable[[list[int]], Iterable[int]] = iter,
) -> list[Alert]:
    """The alerts that the rules would have given, had they seen what the run has.

    In a run of several ranks these see the whole model; in ``run.of_rank(r)`` what the rank saw.
    No action is taken. A rule that fails is called again at later steps, with a warning. What
    the rules did give while the run was recorded is `Run.alerts`.

    shown: goes through the recorded steps, and may show how far it is.

    Raises:
        ValueError: rules stands for no rules.
    """
    return replayed(run, rules, shown).alerts
