"""Flusher: the background thread that makes records of closed steps, for the disk and the sinks."""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from hookstats.arena.arena import PATIENCE
from hookstats.arena.flag import Flag
from hookstats.records.norms import GRADIENT_NORM, GradientNorm
from hookstats.records.record import StepRecord
from hookstats.rules.monitor import Monitor
from hookstats.runs.alerts import Told
from hookstats.runs.world import current_rank
from hookstats.runs.writer import RunWriter
from hookstats.stats.messages import warn
from hookstats.watching.disk import Disk
from hookstats.watching.mailbox import Mailbox
from hookstats.watching.reduce import Exchange
from hookstats.watching.requests import Close, ClosedStep, Drain, Renumber, Scalars, Skip, Step
from hookstats.watching.scalars import StepScalars
from hookstats.watching.sinks import Action, Numbers, Sink, Sinks

DISK_PATIENCE = 60.0
"""The seconds that anybody waits for the flush thread while it gets nothing done: a disk hangs."""


class Flusher:
    """Records closed steps on one daemon thread, "hookstats-flush", which the first step starts.

    The thread copies each step into a StepRecord, releases the step's buffers, publishes the record
    as `latest`, and gives it to the writer, then to each sink. A sink that raises is called again
    at later steps, see `Retries`, and the others go on; nothing is ever raised into the training.
    Where the disk takes nothing (it is full, the directory is gone), the writer keeps the records
    for a while and tries again, and a RuntimeWarning says so. Sinks that have a `close` are closed
    on the thread, once, after their last record.

    Steps are recorded many at once, see `Mailbox`; whoever waits for the thread wakes it.

    If the disk or a sink is slow, closed steps wait here, up to `Arena.most_ahead` of them. Then
    training waits, too, which counts as a stall; after `patience` seconds in which no step was
    taken, steps are lost: the run has them as gaps, and a RuntimeWarning says so. The writer's
    memory has its own bound. A sink that does not return within `patience` is disabled once anybody
    waits for the thread: another thread goes on without the sink, and loses nothing of what others
    are to get. Nobody waits for longer than `disk_patience` for a disk that hangs.

    A forked child does not have the flush thread: its steps are released and not recorded.
    """

    def __init__(
        self,
        writer: RunWriter | None,
        sinks: Sequence[Sink] = (),
        exchange: Exchange | None = None,
    ) -> None:
        """exchange: merges what `latest` and the sinks get; what is written stays this rank's."""
        self.latest: StepRecord | None = None
        """The last recorded step; None until there is one."""
        self.failures: dict[str, str] = {}
        """The first error of each thing that failed, by its description; of sinks the calls that
        they missed, too."""
        self.rank = current_rank() if writer is None else writer.rank
        self.before_exit: Callable[[], object] = lambda: None
        """Called when the interpreter ends, before what was submitted is recorded."""
        self.patience = PATIENCE
        """The seconds that anybody waits for a sink before going on without it."""
        self.disk_patience = DISK_PATIENCE
        self._disk = Disk(writer, self._attempt, self._fail)
        self._sinks = Sinks(sinks, self.failures, self._error_of)
        self.exchange = exchange
        """None once the ranks do not merge any more."""
        self._norm_of = GradientNorm()
        self._norms: dict[int, float] = {}  # of gradients, by step, until the step's scalars come
        self.mailbox = Mailbox()
        """What the thread is asked for."""
        # Other ranks wait for this one; what a rule raises is to come soon.
        if exchange is not None or any(isinstance(s, Monitor) and s.may_raise for s in sinks):
            self.mailbox.rest = 0.0
        self._thread = self._new_thread()
        self._unstarted = [self._thread]
        self._begun = False  # whether somebody started the thread
        self._running = Flag()
        self._served = 0  # how often the thread got something done
        self._last: Callable[[], ClosedStep | None] = lambda: None
        self._todo: deque[Action] = deque()  # calls of sinks; before the next request
        self._pid = os.getpid()
        self._closed = False
        # Not the thread's is_alive, which an interrupted join may make false too early.
        self._ended = Flag()
        self._is_threadless = False  # whether no other thread could be started

    def submit(
        self,
        snapshot: ClosedStep,
        step: int,
        scalars: StepScalars | None = None,
    ) -> None:
        """Have `snapshot` recorded as `step`, with the scalars that it has so far; never waits.

        Raises:
            ValueError: the flusher is closed.
        """
        if os.getpid() != self._pid:
            snapshot.release()
        self._request(Step(snapshot, step, scalars), step)

    def submit_scalars(self, scalars: Sequence[StepScalars]) -> None:
        """Have the scalars of complete steps written, after the records of these; never waits.

        Raises:
            ValueError: the flusher is closed.
        """
        self._request(Scalars(scalars), scalars[0].step)

    def renumber(self, step: int) -> None:
        """Have the ranks merge no step before now with one from now on, whose number is `step`."""
        if self.exchange is not None:
            self._request(Renumber(), step)

    def _request(self, request: Step | Scalars | Skip | Renumber, step: int) -> None:
        if self._closed:
            raise ValueError(f"step = {step}: the flusher is closed")
        if os.getpid() != self._pid:
            self._fail("recording in a forked process", "no flush thread; its steps are lost")
            return
        if not self._begun:
            # Thread.start waits for the new thread, in a way that an interrupt can break.
            try:
                start_new_thread(self._start_first, ())
            except RuntimeError as error:  # of a limit; the next request tries again
                self._fail("starting the flush thread", f"{error}; steps are lost until it starts")
                return
            self._begun = True
            atexit.register(self._at_exit)
            self._running.wait(self.patience)
        self.mailbox.put(request)

    def write_alerts(self, told: Sequence[Told]) -> None:
        """Have the run keep alerts; rules call this on the thread, as they check a step."""
        self._disk.do(lambda writer: writer.write_alerts(told))

    def _at_exit(self) -> None:
        self.before_exit()
        self.drain()

    def skip(self, step: int) -> None:
        """Have the run note that `step` is lost, as training would have waited for too long."""
        waited = f"no step was taken for {self.patience:g} s"
        self._fail("keeping up", f"{waited}; steps from {step} on are lost")
        self._request(Skip(step, "stall"), step)

    def lose(self, step: int, error: Exception, *, is_gap: bool) -> None:
        """Warn of an error while `step` closed; with `is_gap`, the run notes it as lost, too."""
        self._fail("closing a step", f"{type(error).__name__}: {error}; step {step} may be lost")
        if is_gap:
            self._request(Skip(step, "error"), step)  # nothing, where the step was submitted

    def failures_of_all(self) -> dict[str, str]:
        """`failures`, and those of rules."""
        monitors = [sink for sink in self._sinks if isinstance(sink, Monitor)]
        return self.failures.copy() | {k: v for one in monitors for k, v in one.failures.items()}

    @property
    def has_readers(self) -> bool:
        """Whether anyone gets records beside the owner of this, who has `latest`."""
        return self._disk.is_there or bool(self._sinks)

    def shows(self, step: int) -> bool:
        """Whether rules and sinks get the record of a recorded step."""
        exchange = self.exchange  # which the thread may end
        return exchange is None or exchange.is_due(step)

    def drain(self, *, disk: bool = True) -> None:
        """Wait until every submitted step is recorded, with the sinks, and, if `disk`, on the disk.

        A drain to the disk ends a part; frequent drains make a run of many small files.
        """
        if self._can_wait():
            done = Flag()
            self._ask(Drain(done, disk), done)

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Drain, close the writer with `coverage` and end the thread; once closed, do nothing."""
        if not self._can_wait():
            self.leave(coverage)
            return
        self._closed = True
        self._ask(Close(coverage), self._ended)
        if self._ended.is_set() and self._thread.ident is not None:  # it could be started
            self._thread.join()

    def leave(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Close as `close` does, on the thread, without waiting; warnings may come later."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        if not self._begun:
            self._end_here(coverage)
        else:
            self.mailbox.hurry(Close(coverage))

    def _end_here(self, coverage: Mapping[str, Any] | None) -> None:
        """End without the thread, which no step has started."""
        self._end(coverage)
        while self._todo:
            self._todo.popleft()()

    def _ask(self, request: Drain | Close, answered: Flag) -> None:
        """Wait for the thread's answer; ask again every five seconds, as a request may be lost.

        Where the thread gets nothing done for `disk_patience`, go on without it, with a warning: it
        does what is left if the disk comes back before the process ends.
        """
        served, since = self._served, time.monotonic()
        while not (answered.is_set() or self._ended.is_set()):
            self.mailbox.hurry(request)
            for _ in range(50):  # a long wait would not notice some interrupts
                if answered.wait(0.1) or self._ended.is_set():
                    return
                self.overtake()
                if self._is_threadless:
                    self._serve_until(answered)
                elif self._served != served:
                    served, since = self._served, time.monotonic()
                elif time.monotonic() > since + self.disk_patience:
                    why = f"nothing was done for {self.disk_patience:g} s; what waits may be lost"
                    self._fail("waiting for the disk", why)
                    return

    def hurry(self) -> None:
        """Have the thread get on, as training waits: awake, and without a sink that hangs."""
        self.mailbox.ring()
        self.overtake()

    def overtake(self) -> None:
        """Go on without the sink that has not returned for `patience`, if there is one."""
        with self._sinks.ending:
            if not (self._sinks.hangs(self.patience) and self._can_wait()):
                return
            self._replace_thread()
            what = self._sinks.overtake().what
        self._sinks.end(what, f"no return within {self.patience:g} s; the sink is disabled")

    def _replace_thread(self) -> None:
        thread = self._new_thread()
        self._start(thread)  # it waits for the lock
        self._thread = thread

    def _serve_until(self, answered: Flag) -> None:
        """Do the thread's work, but for sinks: another one that hangs would never be overtaken."""
        self._sinks.leave_all_out("no thread can be started for it; the sink is disabled")
        while not (answered.is_set() or self._ended.is_set()):
            self._attempt("recording a step", "the step is lost", self._serve)

    def _start_first(self) -> None:
        """Start the thread, unless an interrupt has had this called already."""
        with suppress(IndexError):
            self._start(self._unstarted.pop())

    def _start(self, thread: threading.Thread) -> None:
        try:
            thread.start()
        except RuntimeError:  # from Python 3.12 on, none starts once the interpreter ends
            self._is_threadless = True
            self._running.set()

    def is_current_thread(self) -> bool:
        """Whether a sink, or what the sink calls, asks."""
        return threading.current_thread() is self._thread

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name="hookstats-flush", daemon=True)

    def _can_wait(self) -> bool:
        """Whether the flush thread was started, and this thread can wait for it."""
        is_there = self._begun and os.getpid() == self._pid
        return is_there and not self.is_current_thread()

    def _run(self) -> None:
        self._running.set()
        with self._sinks.ending:  # until the thread that was overtaken is not the current one
            pass
        try:
            while not self._ended.is_set() and self.is_current_thread():
                self._attempt("recording a step", "the step is lost", self._serve)
                self._served += 1
        finally:
            if self.is_current_thread():
                self._ended.set()
                atexit.unregister(self._at_exit)

    def _serve(self) -> None:
        """Call a sink, serve one request, or write a part that falls due before a request."""
        if self._todo:
            self._todo.popleft()()
            return
        request = self.mailbox.take(self._disk.due_in())
        match request:
            case None:
                self._disk.do(lambda writer: writer.flush_if_due())
            case Step():
                alone = self.exchange is not None
                self._record([request] if alone else self.mailbox.more(request))
            case Skip(step, reason):
                self._disk.do(lambda writer: writer.skip(step, reason))
            case Renumber():
                if self.exchange is not None:
                    self.exchange.line += 1
            case Scalars(steps):
                self._todo.append(partial(self._record_scalars, steps))
            case Drain(done, disk):
                try:
                    if disk:
                        self._disk.do(lambda writer: writer.flush())
                finally:
                    done.set()
            case Close(coverage):
                try:
                    self._end(coverage)
                finally:
                    self._todo.append(self._ended.set)

    def _record(self, steps: Sequence[Step]) -> None:
        records: list[StepRecord] = []
        for step in steps:
            action = partial(self._record_one, step, records)
            if not self._attempt("recording a step", "the step is lost", action):
                # Where the writer has the step, this does nothing.
                self._disk.do(partial(RunWriter.skip, step=step.step, reason="error"))
        rules, others = self._sinks.with_records(records)
        # What is written once rules have seen it comes before other sinks, which may be slow.
        self._todo.extendleft(reversed(rules))
        self._todo.extend(others)

    def _record_one(self, request: Step, into: list[StepRecord]) -> None:
        """Record a closed step, and add what the sinks are to get."""
        snapshot, step, scalars = request
        if self._last() is snapshot:  # an interrupt may have it submitted twice
            return
        self._last = weakref.ref(snapshot)
        try:
            record = snapshot.to_record(step, self.rank)
        finally:
            snapshot.release()
        if scalars is not None:
            values = scalars.resolved()
            record.complete(values)
            norm = self._norm_of(record)
            if norm is not None:
                values.setdefault(GRADIENT_NORM, norm)
                self._norms[step] = norm
        given = None if self.exchange else record
        if given is not None:
            self.latest = given
        self._disk.write(step, lambda: record)
        if self.exchange is not None and self.shows(step):
            given = self._merged(partial(self.exchange, record), record)
        if given is not None:
            self.latest = given
            if self._sinks:
                into.append(given)

    def _merged(
        self, merge: Callable[[], StepRecord | None], record: StepRecord
    ) -> StepRecord | None:
        """The record of all ranks; that of this rank once the ranks do not merge any more."""
        made: list[StepRecord | None] = []
        what, outcome = "merging the records of all ranks", "each rank goes on with its own"
        if not self._attempt(what, outcome, lambda: made.append(merge())):
            self.exchange = None
            return record
        (merged,) = made
        if merged is not None and GRADIENT_NORM in merged.scalars:
            self._norms[record.step] = merged.scalars[GRADIENT_NORM]
        elif merged is not None:
            self._norms.pop(record.step, None)  # that of this rank's own gradients
        return merged

    def _record_scalars(self, steps: Sequence[StepScalars]) -> None:
        closed: list[Numbers] = []
        for one in steps:
            record = partial(self._record_scalars_of, one, closed)
            self._attempt("recording a step", "the step is lost", record)
        self._todo.extend(self._sinks.with_scalars(self.rank, closed))

    def _record_scalars_of(self, scalars: StepScalars, into: list[Numbers]) -> None:
        """Record the scalars of a step, and add what the sinks are to get."""
        step, time, _, iteration = scalars
        values = scalars.resolved()
        if iteration:
            self._todo.extend(self._sinks.with_unclosed(step, values, iteration))
            return
        if step in self._norms:
            values.setdefault(GRADIENT_NORM, self._norms.pop(step))
        if self.latest is not None and self.latest.step == step:
            self.latest.complete(values)
        self._disk.do(lambda writer: writer.write_scalars(step, time, values))
        into.append((step, values))

    def _end(self, coverage: Mapping[str, Any] | None) -> None:
        if coverage is not None and (late := self.failures_of_all()):
            coverage = {**coverage, "failures": {**coverage.get("failures", {}), **late}}
        self._disk.close(coverage)
        self._todo.extend(self._sinks.closings())

    def _attempt(self, what: str, outcome: str, action: Action) -> bool:
        """Whether `action` succeeded; warn of the first error."""
        error = self._error_of(action)
        if error is not None:
            self._fail(what, f"{type(error).__name__}: {error}; {outcome}")
        return error is None

    def _error_of(self, action: Action) -> BaseException | None:
        """The error of an action, if any."""
        try:
            action()
        except BaseException as error:
            # The flush thread survives, since the arena waits for it; interrupts end other threads.
            if threading.current_thread() is not self._thread and not isinstance(error, Exception):
                raise
            return error
        return None

    def _fail(self, what: str, why: str) -> None:
        if what not in self.failures:
            self.failures[what] = why
            warn(f"hookstats: {what} failed: {why}")
