"""Flusher: the background thread that turns closed steps into records, on the disk and to sinks."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from hookstats.records.record import StepRecord
from hookstats.runs.writer import RunWriter
from hookstats.stats.warning import warn
from hookstats.watching.world import current_rank

Sink = Callable[[StepRecord], object]


class ClosedStep(Protocol):
    """What an arena hands out when a step closes. Both methods are called on the flush thread."""

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy the step out."""

    def release(self) -> None:
        """Give the buffers back; called once, after `to_record`, whatever came of that."""


class Flusher:
    """Records closed steps on one daemon thread, "hookstats-flush", started with the first.

    For each: copy it into a StepRecord, release its buffers, publish it as `latest`, give it to the
    writer, then to each sink. A writer or sink that raises (a disk that is full, a directory that
    is gone) is disabled with one RuntimeWarning, the others go on; nothing is ever raised into the
    training. Sinks that have a `close` are closed on the thread, once, after their last record.

    No step is dropped where the disk or a sink is slow: the training waits. An arena has two
    buffers, so besides the step that is open one waits here and one is with the writer or a sink;
    the next `Arena.swap` waits, and counts that as a stall. The writer's memory has its own bound.

    In a forked child, where the flush thread does not exist, steps are released and not recorded.
    """

    def __init__(self, writer: RunWriter | None, sinks: Sequence[Sink] = ()) -> None:
        self.latest: StepRecord | None = None
        """The last step recorded; None while there is none."""
        self.failures: dict[str, str] = {}
        """What failed, such as a sink, with the first error of each."""
        self.rank = current_rank() if writer is None else writer.rank
        self._writer = writer
        self._sinks = list(sinks)
        # Its put is one C call: a KeyboardInterrupt comes before or after, never in between.
        self._queue: SimpleQueue[_Step | _Drain | _Close] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hookstats-flush", daemon=True)
        self._pid = os.getpid()
        self._closed = False
        # Not the thread's own is_alive: an interrupted join may make that false too early.
        self._ended = threading.Event()

    def submit(self, snapshot: ClosedStep, step: int) -> None:
        """Have `snapshot` recorded as `step`; never waits.

        Raises:
            ValueError: the flusher is closed.
        """
        if self._closed:
            raise ValueError(f"step = {step}: the flusher is closed")
        if os.getpid() != self._pid:
            snapshot.release()
            self._fail("recording in a forked process", "it has no flush thread; steps are lost")
            return
        if self._thread.ident is None:
            atexit.register(self.drain)
            self._thread.start()
        self._queue.put(_Step(snapshot, step))

    def drain(self, *, disk: bool = True) -> None:
        """Wait until every submitted step is recorded and with the sinks, and on the `disk` too.

        A drain to the disk ends a part: too often, and a run is many small files.
        """
        if self._can_wait():
            done = threading.Event()
            self._ask(_Drain(done, disk), done)

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Drain, close the writer with `coverage` and end the thread; again does nothing."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        if self._thread.ident is None:
            self._end(coverage)
            return
        if self._can_wait():
            self._ask(_Close(coverage), self._ended)
            self._thread.join()
        else:
            self._queue.put(_Close(coverage))
        atexit.unregister(self.drain)

    def _ask(self, request: _Drain | _Close, answered: threading.Event) -> None:
        """Wait for the thread's answer; every five seconds ask again, lest it lost the request."""
        while not (answered.is_set() or self._ended.is_set()):
            self._queue.put(request)
            for _ in range(50):  # without a short limit some interrupts would go unseen
                if answered.wait(0.1) or self._ended.is_set():
                    return

    def _can_wait(self) -> bool:
        """Whether this thread can wait for the flush thread, and it is there to be waited for."""
        is_there = self._thread.ident is not None and os.getpid() == self._pid
        return is_there and self._thread is not threading.current_thread()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._attempt("recording a step", "the step is lost", self._serve)
        finally:
            self._ended.set()

    def _serve(self) -> None:
        """One request, or a part that fell due before one came."""
        due = None if self._writer is None else self._writer.due_in()
        try:
            request = self._queue.get(timeout=due)
        except Empty:
            self._write(lambda writer: writer.flush_if_due())
            return
        match request:
            case _Step(snapshot, step):
                self._record(snapshot, step)
            case _Drain(done, disk):
                try:
                    if disk:
                        self._write(lambda writer: writer.flush())
                finally:
                    done.set()
            case _Close(coverage):
                try:
                    self._end(coverage)
                finally:
                    self._ended.set()

    def _record(self, snapshot: ClosedStep, step: int) -> None:
        try:
            record = snapshot.to_record(step, self.rank)
        finally:
            snapshot.release()
        self.latest = record
        self._write(lambda writer: writer.write(record))
        for sink in self._sinks.copy():
            if not self._attempt(_name(sink), "it is disabled", partial(sink, record)):
                self._sinks.remove(sink)
                self._close_sink(sink)

    def _end(self, coverage: Mapping[str, Any] | None) -> None:
        self._write(lambda writer: writer.close(coverage))
        while self._sinks:
            self._close_sink(self._sinks.pop(0))

    def _close_sink(self, sink: Sink) -> None:
        close = getattr(sink, "close", None)
        if close is not None:
            self._attempt(f"closing {_name(sink)}", "it may be incomplete", close)

    def _write(self, action: Callable[[RunWriter], None]) -> None:
        """Have the writer do something; it is disabled once that fails."""
        writer = self._writer
        if writer is not None:
            what = f"writing to out = {str(writer.path)!r}"
            if not self._attempt(what, "it is disabled", partial(action, writer)):
                self._writer = None

    def _attempt(self, what: str, outcome: str, action: Callable[[], object]) -> bool:
        """Whether `action` went well; the first thing it raises is warned of."""
        try:
            action()
        except BaseException as error:
            # The flush thread lives on, as the arena waits for it; others may be interrupted.
            if threading.current_thread() is not self._thread and not isinstance(error, Exception):
                raise
            self._fail(what, f"{type(error).__name__}: {error}; {outcome}")
            return False
        return True

    def _fail(self, what: str, why: str) -> None:
        if what in self.failures:
            return
        self.failures[what] = why
        warn(f"hookstats: {what} failed: {why}")


def _name(sink: Sink) -> str:
    return f"sink {getattr(sink, '__qualname__', None) or repr(sink)}"


class _Step(NamedTuple):
    snapshot: ClosedStep
    step: int


class _Drain(NamedTuple):
    done: threading.Event
    disk: bool


class _Close(NamedTuple):
    coverage: Mapping[str, Any] | None
