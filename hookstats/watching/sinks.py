"""Sinks, Notices: what gets records and incidents, each on a thread that may hang alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from hookstats.records.alerts import Incident
from hookstats.records.record import StepRecord
from hookstats.rules.actions import OnIncident, Webhook
from hookstats.stats.messages import error_text, notify
from hookstats.stats.retries import Patience, Retries

Sink = Callable[[StepRecord], object]
"""What gets every record; it may have a `close`, and a `write_scalars`."""

Action = Callable[[], object]

Numbers = tuple[int, Mapping[str, float]]
"""A step, and its scalars by name."""


class Worker:
    """A daemon thread that calls what may not return; where none can start, the caller calls it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[Action | None] = SimpleQueue()
        self._returned: SimpleQueue[None] = SimpleQueue()
        self._given = self._seen = 0  # calls, and returns that `wait` has seen
        self.thread: threading.Thread | None = None
        self.is_lost = False
        """Whether a call did not return in time; nothing is called any more."""
        self.spent = 0.0
        """The CPU time, in seconds, that the thread has taken."""

    @property
    def waiting(self) -> int:
        """The calls that have not returned."""
        return self._given - self._seen - self._returned.qsize()

    def call(self, actions: Iterable[Action]) -> None:
        """Have the thread call these; what they raise is lost."""
        for action in actions:
            if not self.start():
                action()
                continue
            self._calls.put(action)
            self._given += 1

    def wait(self, patience: float) -> bool:
        """Whether all calls have returned, each within `patience` seconds of the one before."""
        left = Patience(patience)
        while self._given > self._seen and not self.is_lost:
            with suppress(Empty):
                self._returned.get(timeout=left.tick)
                self._seen += 1
                left = Patience(patience)
                continue
            self.is_lost = left.is_over()
        return not self.is_lost

    def start(self) -> bool:
        """Start the thread, if it is not there; whether it is there now."""
        if self.thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter ends
                return False
            self.thread = thread
        return True

    def end(self, patience: float | None = None) -> None:
        """End the thread after its calls, and wait for that."""
        self._calls.put(None)
        if self.thread is not None and patience is not None and not self.is_lost:
            self.thread.join(patience)

    def _run(self) -> None:
        while not self.is_lost and (action := self._calls.get()) is not None:
            error_of(action)
            self.spent = time.thread_time()
            self._returned.put(None)


class _Called:
    """One sink, its thread, and whether it is still called."""

    def __init__(self, sink: Sink, failures: dict[str, str]) -> None:
        self.sink = sink
        self.name = _named("sink", sink)
        self.worker = Worker("hookstats-sink")
        self.is_open = True
        self._retries = Retries(failures)

    def call(self, part: str, actions: Sequence[Action]) -> None:
        """Have the thread call a part of the sink, such as "scalars", if it is still called."""
        if self.is_open:
            self.worker.call([partial(self._use, part, action) for action in actions])
        else:
            self._retries.miss(self.name, len(actions))

    def _use(self, part: str, action: Action) -> None:
        """Call a part of the sink, if it is due; close a sink that always fails."""
        if not self.is_open:
            self._retries.miss(self.name)
            return
        if not self._retries.is_due(part):
            return
        error = error_of(action)
        if not self.is_open:  # the call took too long
            return
        if error is None:
            self._retries.worked(part)
        elif self._retries.failed(part, self.name, error, "the sink is disabled"):
            self.close()

    def close(self) -> None:
        """Close the sink, on its thread."""
        if not self.is_open:
            return
        self.is_open = False
        close = getattr(self.sink, "close", None)
        error = None if close is None else error_of(close)
        if error is not None:
            why = f"{error_text(error)}; its output may be incomplete"
            self._retries.end(f"closing {self.name}", why)

    def leave(self, patience: float) -> None:
        """Call the sink no more, which has not returned; its thread is left to it."""
        why = f"no return within {patience:g} s; the sink is disabled"
        if self.is_open:
            self.is_open = False
            self._retries.end(self.name, why)
            self._retries.miss(self.name, self.worker.waiting)
        else:
            self._retries.end(f"closing {self.name}", why)


class Sinks:
    """The sinks that are called, each as `Retries` says, on a separate thread.

    Whoever gives them records waits until all have them, or have not returned for `patience`: such
    a sink is disabled, and its thread is left to it.
    """

    def __init__(self, sinks: Iterable[Sink], failures: dict[str, str]) -> None:
        """failures: gets what is known of the sinks that failed."""
        self._called = [_Called(sink, failures) for sink in sinks]

    def __len__(self) -> int:
        return len(self._called)

    @property
    def spent(self) -> float:
        """The CPU time, in seconds, that the threads have taken."""
        return sum([one.worker.spent for one in self._called])

    def start(self) -> None:
        """Start the threads: once the interpreter ends, none can be started."""
        for one in self._called:
            one.worker.start()

    def write_records(self, records: Sequence[StepRecord], patience: float) -> None:
        """Give the sinks these records, one by one."""
        for one in self._called:
            one.call("records", [partial(one.sink, each) for each in records])
        self._wait(patience)

    def write_scalars(self, rank: int, steps: Sequence[Numbers], patience: float) -> None:
        """Give the scalars of steps to the sinks that take them."""
        for one in self._called:
            write: Any = getattr(one.sink, "write_scalars", None)
            if callable(write):
                one.call("scalars", [partial(write, step, rank, each) for step, each in steps])
        self._wait(patience)

    def close(self, patience: float | None) -> None:
        """Close the sinks, which get nothing else any more; with None, wait for none of them."""
        called = self._called
        for one in called:
            one.worker.call([one.close])
        if patience is not None:
            self._wait(patience)
        for one in called:
            one.worker.end(patience)

    def _wait(self, patience: float) -> None:
        for one in self._called:
            if not (one.worker.is_lost or one.worker.wait(patience)):
                one.leave(patience)


class Notices:
    """Gives actions each incident; never waits before `finish`, and raises nothing."""

    def __init__(
        self, actions: Sequence[OnIncident], run: Path | None, failures: dict[str, str]
    ) -> None:
        """run: the run directory, for messages. failures: gets the first error of each action."""
        self._workers = [(action, Worker("hookstats-action")) for action in actions]
        self._run = run
        self._failures = failures
        self._closing = threading.Event()

    def send(self, incident: Incident) -> None:
        """Have the actions called with an incident."""
        for action, worker in self._workers:
            worker.call([partial(self._tell, action, incident)])

    def hurry(self) -> None:
        """Have no action pause before another try: the training ends."""
        self._closing.set()

    def finish(self, patience: float) -> None:
        """Wait until the actions have returned, or none of them has for `patience` seconds."""
        self.hurry()
        for action, worker in self._workers:
            if not worker.wait(patience):
                lost = worker.waiting
                why = f"no return within {patience:g} s; {lost} of its incidents may be lost"
                notify(self._failures, _named("action", action), why)
            worker.end()

    def _tell(self, action: OnIncident, incident: Incident) -> None:
        try:
            if isinstance(action, Webhook):
                action(incident, self._run, self._closing)
            else:
                action(incident)
        except BaseException as error:
            # Of a later error of the same action nothing more is said than that it came.
            why = f"{error_text(error)}; the incident of step {incident.step} is in the run only"
            notify(self._failures, _named("action", action), why)


def _named(what: str, called: object) -> str:
    return f"{what} {getattr(called, '__qualname__', None) or repr(called)}"


def error_of(action: Action) -> BaseException | None:
    """The error of an action, if any; for threads that no error may end."""
    try:
        action()
    except BaseException as error:
        return error
    return None
