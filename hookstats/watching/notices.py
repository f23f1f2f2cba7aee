"""Notices: tells actions of incidents, each action on a separate thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hookstats.records.alerts import Incident
from hookstats.rules.actions import OnIncident, Webhook
from hookstats.stats.messages import error_text, notify
from hookstats.watching.sinks import Worker

MOST_WAITING = 64
"""How many incidents may wait for an action before later ones are left out."""


class _Notified:
    """An action and its thread."""

    def __init__(self, action: OnIncident) -> None:
        self.action = action
        self.name = f"action {getattr(action, '__qualname__', None) or repr(action)}"
        self.worker = Worker("hookstats-action")


class Notices:
    """Gives actions each incident; never waits before `finish`, and raises nothing."""

    def __init__(
        self, actions: Sequence[OnIncident], run: Path | None, failures: dict[str, str]
    ) -> None:
        """run: the run directory, for messages. failures: gets the first error of each action."""
        self._notified = [_Notified(action) for action in actions]
        self._run = run
        self._failures = failures
        self._closing = threading.Event()

    def send(self, incident: Incident) -> None:
        """Have the actions called with an incident."""
        for one in self._notified:
            if one.worker.waiting >= MOST_WAITING:
                notify(self._failures, one.name, f"{MOST_WAITING} incidents wait; others are lost")
                continue
            one.worker.call([partial(self._tell, one, incident)])

    def hurry(self) -> None:
        """Have no action pause before another try: the training ends."""
        self._closing.set()

    def finish(self, patience: float) -> None:
        """Wait until the actions have returned, or none of them has for `patience` seconds."""
        self.hurry()
        for one in self._notified:
            if not one.worker.wait(patience):
                lost = one.worker.waiting
                why = f"no return within {patience:g} s; {lost} of its incidents may be lost"
                notify(self._failures, one.name, why)
            one.worker.end()

    def _tell(self, one: _Notified, incident: Incident) -> None:
        try:
            if isinstance(one.action, Webhook):
                one.action(incident, self._run, self._closing)
            else:
                one.action(incident)
        except BaseException as error:
            # Of a later error of the same action nothing more is said than that it came.
            why = f"{error_text(error)}; the incident of step {incident.step} is in the run only"
            notify(self._failures, one.name, why)
