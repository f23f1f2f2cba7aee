"""Flusher: the background thread that makes records of closed steps, for the disk and the sinks."""

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
    """A step that an arena closed. The flush thread calls both methods."""

    def to_record(self, step: int, rank: int) -> StepRecord:
        """Copy the step out."""

    def release(self) -> None:
        """Give the buffers back; called once, after `to_record`, whether that failed or not."""


class Flusher:
    """Records closed steps on one daemon thread, "hookstats-flush", which the first step starts.

    The thread copies each step into a StepRecord, releases the step's buffers, publishes the record
    as `latest`, and gives it to the writer, then to each sink. A writer or sink that raises (the
    disk is full, the directory is gone) is disabled with one RuntimeWarning, and the others go on;
    nothing is ever raised into the training. Sinks that have a `close` are closed on the thread,
    once, after their last record.

    If the disk or a sink is slow, training waits and no step is dropped. An arena has two buffers:
    besides the open step, one step waits here and one is with the writer or a sink. The next
    `Arena.swap` then waits, and counts a stall. The writer's memory has its own bound.

    A forked child does not have the flush thread: its steps are released and not recorded.
    """

    def __init__(self, writer: RunWriter | None, sinks: Sequence[Sink] = ()) -> None:
        self.latest: StepRecord | None = None
        """The last recorded step; None until there is one."""
        self.failures: dict[str, str] = {}
        """The first error of each thing that failed, such as a sink, by its description."""
        self.rank = current_rank() if writer is None else writer.rank
        self._writer = writer
        self._sinks = list(sinks)
        # Its put is one C call: a KeyboardInterrupt comes before or after it, never during it.
        self._queue: SimpleQueue[_Step | _Drain | _Close] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hookstats-flush", daemon=True)
        self._pid = os.getpid()
        self._closed = False
        # Not the thread's is_alive, which an interrupted join may make false too early.
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

    @property
    def has_readers(self) -> bool:
        """Whether anyone gets records beside the owner of this, who has `latest`."""
        return self._writer is not None or bool(self._sinks)

    def drain(self, *, disk: bool = True) -> None:
        """Wait until every submitted step is recorded, with the sinks, and, if `disk`, on the disk.

        A drain to the disk ends a part; frequent drains make a run of many small files.
        """
        if self._can_wait():
            done = threading.Event()
            self._ask(_Drain(done, disk), done)

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Drain, close the writer with `coverage` and end the thread; once closed, do nothing."""
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

    def leave(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Close as `close` does, on the thread, without waiting; warnings may come later."""
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._thread.ident is None:
            self._end(coverage)
        else:
            self._queue.put(_Close(coverage))

    def _ask(self, request: _Drain | _Close, answered: threading.Event) -> None:
        """Wait for the thread's answer; ask again every five seconds, as a request may be lost."""
        while not (answered.is_set() or self._ended.is_set()):
            self._queue.put(request)
            for _ in range(50):  # a long wait would not notice some interrupts
                if answered.wait(0.1) or self._ended.is_set():
                    return

    def _can_wait(self) -> bool:
        """Whether the flush thread exists, and this thread can wait for it."""
        is_there = self._thread.ident is not None and os.getpid() == self._pid
        return is_there and self._thread is not threading.current_thread()

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._attempt("recording a step", "the step is lost", self._serve)
        finally:
            self._ended.set()
            atexit.unregister(self.drain)

    def _serve(self) -> None:
        """Serve one request, or write a part that falls due before a request arrives."""
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
        """Have the writer do something; disable the writer if that fails."""
        writer = self._writer
        if writer is not None:
            what = f"writing to out = {str(writer.path)!r}"
            if not self._attempt(what, "it is disabled", partial(action, writer)):
                self._writer = None

    def _attempt(self, what: str, outcome: str, action: Callable[[], object]) -> bool:
        """Whether `action` succeeded; warn of the first error."""
        try:
            action()
        except BaseException as error:
            # The flush thread survives, since the arena waits for it; interrupts end other threads.
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
