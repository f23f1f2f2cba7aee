"""Sinks: what the flush thread calls with records, each sink until it is ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from hookstats.arena.lock import lock
from hookstats.records.record import StepRecord
from hookstats.rules.monitor import Monitor
from hookstats.stats.retries import Retries

Sink = Callable[[StepRecord], object]
"""What gets every record; it may have a `close`, and a `write_scalars`."""

Action = Callable[[], object]

Numbers = tuple[int, Mapping[str, float]]
"""A step, and its scalars by name."""


class Call(NamedTuple):
    """A call of a sink that has not returned yet."""

    sink: Sink
    what: str
    since: float


class Sinks:
    """The sinks that are called, each as `Retries` says.

    Calls are made on one thread. Another thread that waits for it may `overtake` a call: then the
    sink is not called any more, and the call's outcome is nobody's.
    """

    def __init__(
        self,
        sinks: Iterable[Sink],
        failures: dict[str, str],
        error_of: Callable[[Action], BaseException | None],
    ) -> None:
        """failures: gets what is known of the sinks that failed. error_of: runs an action, and
        returns its error."""
        self.ending = lock()
        """Held while a call ends or is overtaken."""
        self._sinks = list(sinks)
        self._retries = Retries(failures)
        self._error_of = error_of
        self._names: dict[int, str] = {}  # by id
        self._calling: Call | None = None

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._sinks)

    def __len__(self) -> int:
        return len(self._sinks)

    def with_records(self, records: Sequence[StepRecord]) -> tuple[list[Action], list[Action]]:
        """The calls that give sinks these records, one each: those of rules that come before all
        other sinks, and the rest."""
        calls: list[Action] = []
        rules = 0
        for sink in self._sinks:
            given: list[Action] = [partial(sink, record) for record in records]
            if isinstance(sink, Monitor) and not calls:
                rules = len(given)
            calls += self._uses(sink, "records", given)
        return calls[:rules], calls[rules:]

    def with_scalars(self, rank: int, steps: Sequence[Numbers]) -> list[Action]:
        """The calls that give sinks the scalars of steps: one each, but one of all for rules."""
        calls: list[Action] = []
        for sink in self._sinks:
            write: Any = getattr(sink, "write_scalars", None)
            if not callable(write):
                continue
            given: list[Action] = [partial(write, step, rank, values) for step, values in steps]
            if isinstance(sink, Monitor):
                given = [partial(_call_all, given)]
            calls += self._uses(sink, "scalars", given)
        return calls

    def with_unclosed(self, step: int, values: Mapping[str, float], iteration: int) -> list[Action]:
        """The calls that give rules the scalars of an iteration that closed no step."""
        calls: list[Action] = []
        for sink in self._sinks:
            if isinstance(sink, Monitor):
                write = partial(sink.write_unclosed, step, values, iteration)
                calls += self._uses(sink, "scalars", [write])
        return calls

    def _uses(self, sink: Sink, part: str, actions: Iterable[Action]) -> list[Action]:
        return [partial(self._use, sink, part, action) for action in actions]

    def _use(self, sink: Sink, part: str, action: Action) -> None:
        """Call a part of a sink, such as "scalars", if it is due; close a sink that is ended."""
        key = id(sink), part
        if not self._has(sink) or not self._retries.is_due(key):
            return
        what = self._name(sink)
        error, is_ours = self._call(sink, what, action)
        if not is_ours:
            return
        if error is None:
            self._retries.worked(key)
        elif self._retries.failed(key, what, error, "the sink is disabled"):
            self._leave_out(sink)
            self._close(sink)

    def closings(self) -> list[Action]:
        """The calls that close the sinks, which get nothing else any more."""
        sinks, self._sinks = self._sinks, []
        return [partial(self._close, sink) for sink in sinks]

    def hangs(self, patience: float) -> bool:
        """Whether a call has not returned for `patience` seconds."""
        return self._calling is not None and time.monotonic() >= self._calling.since + patience

    def overtake(self) -> Call:
        """Leave out the sink that is being called; whoever calls this holds `ending`."""
        call, self._calling = self._calling, None
        assert call is not None
        self._leave_out(call.sink)
        return call

    def leave_all_out(self, why: str) -> None:
        """Call no sink any more, with a warning of each."""
        left, self._sinks = self._sinks, []
        for sink in left:
            self._retries.end(self._name(sink), why)

    def _has(self, sink: Sink) -> bool:
        return any(other is sink for other in self._sinks)

    def _leave_out(self, sink: Sink) -> None:
        self._sinks = [other for other in self._sinks if other is not sink]

    def _close(self, sink: Sink) -> None:
        close = getattr(sink, "close", None)
        if close is None:
            return
        what = f"closing {self._name(sink)}"
        error, is_ours = self._call(sink, what, close)
        if is_ours and error is not None:
            why = f"{type(error).__name__}: {error}; its output may be incomplete"
            self._retries.end(what, why)

    def end(self, what: str, why: str) -> None:
        """Warn that what was overtaken is not called any more."""
        self._retries.end(what, why)

    def _call(self, sink: Sink, what: str, action: Action) -> tuple[BaseException | None, bool]:
        """The error of a call, if any, and whether the call was not overtaken."""
        self._calling = call = Call(sink, what, time.monotonic())
        error = self._error_of(action)
        with self.ending:
            is_ours = self._calling is call
            if is_ours:
                self._calling = None
        return error, is_ours

    def _name(self, sink: Sink) -> str:
        """What messages call a sink; made once, as a representation may be long."""
        name = self._names.get(id(sink))
        if name is None:
            said = getattr(sink, "__qualname__", None) or repr(sink)
            name = self._names[id(sink)] = f"sink {said}"
        return name


def _call_all(actions: Iterable[Action]) -> None:
    for action in actions:
        action()
