"""Recorder: the background thread that makes records of closed steps, for disk and sinks."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from hookstats.buffers.closed import ClosedStep
from hookstats.buffers.double_buffer import PATIENCE
from hookstats.records.loads import Loads
from hookstats.records.norms import GRADIENT_NORM, gradient_norm
from hookstats.records.record import StepRecord
from hookstats.rules.actions import OnIncident
from hookstats.rules.facts import Fact
from hookstats.rules.monitor import Monitor
from hookstats.rules.rule import Rule
from hookstats.runs.alerts import AlertEntry
from hookstats.runs.world import current_rank
from hookstats.runs.writer import RunWriter
from hookstats.stats.messages import error_text, notify, say, short_path
from hookstats.stats.retries import Patience
from hookstats.watching.reduce import Exchange
from hookstats.watching.scalars import StepScalars
from hookstats.watching.sinks import (
    Action,
    Notices,
    Numbers,
    Sink,
    Sinks,
    Worker,
    error_of,
)
from hookstats.watching.upload import Upload, before_exit

DISK_PATIENCE = 60.0
"""The seconds that anybody waits for the recorder while it gets nothing done: a disk hangs."""

BATCH_SECONDS = 0.25
"""How long the recorder sleeps after it recorded steps: others come together then."""

BATCH_STEPS = 32
"""How many steps end the sleep."""

MOST_WAITING = 256
"""How many steps may wait for the recorder before training waits, too."""

BYTES_WAITING = 64 << 20
"""How many bytes of them may wait, where more than two steps do; a quarter ends the sleep."""

_POLL_SECONDS = 0.1


class _Step(NamedTuple):
    """Record a closed step, with the scalars that it has so far."""

    closed: ClosedStep
    step: int
    scalars: StepScalars | None
    nbytes: int


class _Call(NamedTuple):
    """Call something on the thread; at once, if somebody waits for it."""

    action: Action
    is_urgent: bool = False


class Recorder:
    """Records closed steps on one daemon thread, "hookstats-recorder", which the first step starts.

    The training puts requests into one queue. The thread makes a StepRecord of each step, publishes
    it as `latest`, writes it, has the rules check it, and gives it to the sinks, each of which has
    a thread, see `Sinks`. Nothing is ever raised into the training, and no error ends the thread.
    Where the disk takes nothing (it is full, the directory is gone), the writer keeps the records
    for a while and tries again, and a RuntimeWarning says so.

    Making a record of each step of a small model, beside the training, costs the training more than
    the step: so steps are recorded many at once. Whoever waits for the recorder wakes it.

    If the disk or a sink is slow, closed steps wait in the queue, up to `MOST_WAITING` of them.
    Then training waits, too, which counts as a stall; after `DoubleBuffer.patience` seconds in
    which no step was taken, steps are lost: the run has them as gaps, and a RuntimeWarning says so.
    Nobody waits for longer than `disk_patience` for a disk that hangs.

    A forked child has no recorder: its steps are released and not recorded.
    """

    def __init__(
        self,
        writer: RunWriter | None,
        sinks: Sequence[Sink] = (),
        monitor: Monitor | None = None,
        exchange: Exchange | None = None,
    ) -> None:
        """monitor: checks each step before the sinks get it; None for no rules.

        exchange: merges what `latest`, rules and sinks get; what is written stays this rank's.
        """
        self.latest: StepRecord | None = None
        """The last recorded step; None until there is one."""
        self.failures: dict[str, str] = {}
        """The first error of each thing that failed, by its description; of sinks the calls that
        they missed, too."""
        self.rank = current_rank() if writer is None else writer.rank
        self.before_exit: Action = lambda: None
        """Called when the interpreter ends, before what was submitted is recorded."""
        self.last_words: Callable[[], str] | None = None
        """What is said of the run once it is closed, on the thread."""
        self.patience = PATIENCE
        """The seconds that the recorder waits for a sink before going on without it."""
        self.disk_patience = DISK_PATIENCE
        self.loads = Loads({})
        """Finds the loads of experts and codes in each record."""
        self.exchange = exchange
        """None once the ranks do not merge any more."""
        self._writer = writer
        self._sinks = Sinks(sinks, self.failures)
        self._notices = Notices((), None, self.failures)
        self._upload: Upload | None = None
        self._monitor = monitor
        self._of_rules: dict[int, Worker] = {}  # by the id of the rule
        if monitor is not None:
            monitor.perform = self._perform
        self._own: dict[int, dict[str, float]] = {}  # by step, until the step's scalars come
        # Other ranks wait for this one; what a rule raises is to come soon.
        is_prompt = exchange is not None or (monitor is not None and monitor.may_raise)
        self.rest = 0.0 if is_prompt else BATCH_SECONDS
        """The seconds of the sleep after steps."""
        # Puts are single calls of C: an interrupt cannot leave a queue locked, as it can an Event.
        self._queue: SimpleQueue[_Step | _Call] = SimpleQueue()
        self._bell: SimpleQueue[None] = SimpleQueue()  # ends the sleep
        self._held: deque[_Step | _Call] = deque()  # taken from the queue, and still to be served
        # Each counter has one thread that changes it.
        self._submitted = self._submitted_bytes = 0
        self._taken = self._taken_bytes = 0
        self._served = 0  # how often the thread got something done
        self._spent = 0.0
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._is_closed = self._has_ended = False
        atexit.register(self._at_exit)

    def notify_of_incidents(self, actions: Sequence[OnIncident]) -> None:
        """Have actions called with each incident that the monitor finds."""
        assert self._monitor is not None
        path = None if self._writer is None else self._writer.path
        self._notices = Notices(actions, path, self.failures)
        self._monitor.begun = self._notices.send

    def upload(self, url: str, *, append: bool, overwrite: bool) -> None:
        """Have the run copied to a URL while it is written; see `Upload`."""
        assert self._writer is not None
        about = url, self._writer.path, self.rank, self.failures
        self._upload = Upload(*about, append=append, overwrite=overwrite)
        atexit.unregister(self._at_exit)
        before_exit(self._at_exit)

    # What the training calls.

    def submit(
        self,
        closed: ClosedStep,
        step: int,
        scalars: StepScalars | None = None,
    ) -> None:
        """Have `closed` recorded as `step`, with the scalars that it has so far; never waits.

        Raises:
            ValueError: the recorder is closed.
        """
        request = _Step(closed, step, scalars, closed.nbytes)
        if not self._put(request, step):
            closed.release()
            return
        self._submitted += 1
        self._submitted_bytes += request.nbytes
        waiting, nbytes = self._waiting()
        if waiting >= BATCH_STEPS or nbytes > BYTES_WAITING // 4 or not closed.is_free:
            self._bell.put(None)

    def submit_scalars(self, scalars: Sequence[StepScalars]) -> None:
        """Have the scalars of complete steps written, after the records of these; never waits.

        Raises:
            ValueError: the recorder is closed.
        """
        self._put(_Call(partial(self._record_scalars, scalars)), scalars[0].step)

    def submit_fact(self, step: int, fact: Fact) -> None:
        """Have the rules asked about what was seen in the open step; never waits."""
        if self._monitor is not None and not self._is_closed:
            self._put(_Call(partial(self._monitor.write_fact, step, fact)), step)

    def renumber(self, step: int) -> None:
        """Have the ranks merge no step before now with one from now on, whose number is `step`."""
        if self.exchange is not None:
            self._put(_Call(self._begin_line), step)

    def has_room(self) -> bool:
        """Whether another step may be submitted now, without more waiting than the bounds allow."""
        waiting, nbytes = self._waiting()
        is_full = waiting >= MOST_WAITING or (waiting > 2 and nbytes > BYTES_WAITING)
        return not is_full or os.getpid() != self._pid

    def hurry(self) -> None:
        """End the sleep, as training waits."""
        self._put_urgent(lambda: None)

    def skip(self, step: int, reason: str, what: str, why: str) -> None:
        """Have the run note that `step` is lost, with a warning; see docs/format.md for reasons."""
        self.notify(what, why)
        self._put(_Call(partial(self._skip, step, reason)), step)

    def write_alerts(self, entries: Sequence[AlertEntry]) -> None:
        """Have the run keep alerts; rules call this on the thread, as they check a step."""
        self._write(lambda writer: writer.write_alerts(entries))

    def write_batch(self, step: int, content: bytes) -> None:
        """Have the run keep the batch of a step; called on the thread.

        Raises:
            OSError: it cannot be written.
        """
        if self._writer is not None:
            self._writer.write_batch(step, content)

    def notify(self, what: str, why: str) -> None:
        """Warn that something failed, the first time, and keep that for the coverage."""
        notify(self.failures, what, why)

    def failures_of_all(self) -> dict[str, str]:
        """`failures`, and those of rules."""
        of_rules = {} if self._monitor is None else self._monitor.failures
        return self.failures | of_rules

    @property
    def has_readers(self) -> bool:
        """Whether anyone gets records beside the owner of this, who has `latest`."""
        return self._writer is not None or bool(self._sinks) or self._monitor is not None

    @property
    def spent(self) -> float:
        """The CPU time, in seconds, of the threads behind the training, since the first step was
        recorded: that one takes imports along."""
        return self._spent + self._sinks.spent

    def shows(self, step: int) -> bool:
        """Whether rules and sinks get the record of a recorded step."""
        exchange = self.exchange  # which the thread may end
        return exchange is None or exchange.is_due(step)

    def drain(self, *, disk: bool = True) -> None:
        """Wait until every submitted step is recorded, with the sinks, and, if `disk`, on the disk.

        A drain to the disk ends a part; frequent drains make a run of many small files.
        """
        if self._can_wait():
            self._ask(lambda: disk and self._write(lambda writer: writer.flush()))

    def close(self, coverage: Mapping[str, Any] | None = None) -> None:
        """Drain, close the writer with `coverage` and end the thread; once closed, do nothing."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid or self.is_current_thread():
            self.leave(coverage, patience=self.patience)
        else:
            self._is_closed = True
            self._ask(partial(self._end, coverage, self.patience))
            if self._has_ended:
                thread.join()
        if self._upload is not None and not self.is_current_thread():
            self._upload.finish()

    def leave(self, coverage: Mapping[str, Any] | None, *, patience: float | None = None) -> None:
        """Close as `close` does, on the thread, without waiting; warnings may come later.

        patience: how long sinks are waited for where there is no thread.
        """
        if os.getpid() != self._pid:
            return
        self._is_closed = True
        if self._thread is None:
            self._end(coverage, patience)
        else:
            self._put_urgent(partial(self._end, coverage, self.patience))

    def is_current_thread(self) -> bool:
        """Whether the recorder, a sink, or what these call, asks."""
        return threading.current_thread().name.startswith("hookstats-")

    def _put(self, request: _Step | _Call, step: int) -> bool:
        """Ask the thread for something; whether there is a thread."""
        if self._is_closed:
            raise ValueError(f"step = {step}: the recorder is closed")
        if os.getpid() != self._pid:
            self.notify("recording in a forked process", "no recorder thread; its steps are lost")
            return False
        if not self._has_thread():
            return False
        self._queue.put(request)
        return True

    def _put_urgent(self, action: Action) -> None:
        """Have the thread do something as soon as it can."""
        self._queue.put(_Call(action, is_urgent=True))
        self._bell.put(None)

    def _has_thread(self) -> bool:
        """Whether the thread is there, which this starts where it is not."""
        if self._has_ended or self._thread is not None:
            return True
        self._thread = threading.Thread(target=self._run, name="hookstats-recorder", daemon=True)
        try:
            self._thread.start()
        except BaseException as error:
            self._thread = None  # should the thread come up, it ends at once
            if not isinstance(error, RuntimeError):
                raise
            # Of a limit, or as the interpreter ends.
            self.notify("starting the recorder thread", f"{error}; steps are lost until it starts")
            return False
        return True

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:
            self._notices.hurry()
            self.before_exit()
            self.drain()
            self._notices.finish(self.patience)

    def _waiting(self) -> tuple[int, int]:
        """How many steps wait for the thread, and how many bytes of them the host has."""
        return self._submitted - self._taken, self._submitted_bytes - self._taken_bytes

    def _can_wait(self) -> bool:
        """Whether the thread was started, and this thread can wait for it."""
        is_there = self._thread is not None and os.getpid() == self._pid
        return is_there and not self._has_ended and not self.is_current_thread()

    def _ask(self, action: Action) -> None:
        """Have the thread do something and wait until it is done.

        Where the thread gets nothing done for `disk_patience`, go on without it, with a warning: it
        does what is left if the disk comes back before the process ends.
        """
        answer: SimpleQueue[None] = SimpleQueue()

        def act() -> None:
            try:
                action()
            finally:
                answer.put(None)

        self._put_urgent(act)
        served, left = self._served, Patience(self.disk_patience)
        while not self._has_ended:
            try:
                answer.get(timeout=_POLL_SECONDS)
            except Empty:
                pass
            else:
                return
            if self._served != served:
                served, left = self._served, Patience(self.disk_patience)
            elif left.is_over():
                why = f"no progress in {self.disk_patience:g} s; waiting steps may be lost"
                self.notify("waiting for the disk", why)
                return

    # What the thread does.

    def _run(self) -> None:
        self._sinks.start()
        while not self._has_ended and self.is_current_thread():
            error = error_of(self._serve)
            if error is not None:  # and whatever comes of saying so
                error_of(partial(self.notify, "recording", error_text(error)))

    def _serve(self) -> None:
        """Serve a request, or steps that came together, or write a part that falls due before."""
        request = self._next()
        began = time.thread_time()
        is_first = not self._taken
        if request is None:
            self._write(lambda writer: writer.flush_if_due())
        elif isinstance(request, _Call):
            request.action()
        else:
            steps = self._together(request)
            try:
                self._record(steps)
            finally:
                self._taken += len(steps)
                self._taken_bytes += sum([one.nbytes for one in steps])
            if not self._held:
                self._rest()
        self._served += 1
        if not is_first:
            self._spent += time.thread_time() - began

    def _next(self) -> _Step | _Call | None:
        """The next request; None if there is none before something is to be written."""
        if self._held:
            return self._held.popleft()
        due = None if self._writer is None else self._writer.due_in()
        try:
            return self._queue.get(timeout=due)
        except Empty:
            return None

    def _together(self, first: _Step) -> list[_Step]:
        """This step, and those after it that wait already, until training goes back."""
        steps = [first]
        self._gather()
        while self._held and len(steps) < BATCH_STEPS:
            request = self._held[0]
            if not (isinstance(request, _Step) and request.step > steps[-1].step):
                break
            steps.append(request)
            self._held.popleft()
        return steps

    def _rest(self) -> None:
        """Sleep for `rest` while few steps come, and nobody waits; drain devices in between."""
        end = time.monotonic() + self.rest
        while True:
            self._gather()
            is_urgent = any(isinstance(one, _Call) and one.is_urgent for one in self._held)
            nbytes = sum([one.closed.nbytes for one in self._held if isinstance(one, _Step)])
            left = end - time.monotonic()
            if is_urgent or len(self._held) >= BATCH_STEPS or nbytes > BYTES_WAITING // 4:
                return
            if left <= 0:
                return
            try:
                self._bell.get(timeout=left)
            except Empty:
                return

    def _gather(self) -> None:
        """Take all that waits in the queue; what devices have of steps is drained at once, so that
        the training finds their buffers free."""
        while not self._bell.empty():
            self._bell.get_nowait()
        while not self._queue.empty():
            request = self._queue.get_nowait()
            self._held.append(request)
            if isinstance(request, _Step):
                self._attempt("draining a device", "the step is lost", request.closed.drain)

    def _record(self, steps: Sequence[_Step]) -> None:
        records: list[StepRecord] = []
        for one in steps:
            record = partial(self._record_one, one, records)
            if not self._attempt("recording a step", "the step is lost", record):
                self._skip(one.step, "error")
        if (monitor := self._monitor) is not None:
            for each in records:
                check = partial(monitor, each)
                self._attempt("checking steps by rules", "alerts of them are lost", check)
        self._sinks.write_records(records, self.patience)

    def _record_one(self, request: _Step, records: list[StepRecord]) -> None:
        """Record a closed step, and add what rules and sinks are to get."""
        closed, step, scalars, _ = request
        try:
            record = closed.to_record(step, self.rank)
        finally:
            closed.release()
        if scalars is not None:
            values = scalars.resolved()
            record.complete(values)
            own = self.loads(record)
            norm = gradient_norm(record)
            if norm is not None:
                own[GRADIENT_NORM] = norm
            for name, value in own.items():
                values.setdefault(name, value)
            self._own[step] = own
        self._write_record(record)
        given: StepRecord | None = record
        if self.exchange is not None:
            merge = partial(self.exchange, record)
            given = self._merged(merge, record) if self.shows(step) else None
        if given is not None:
            self.latest = given
            if self._sinks or self._monitor is not None:
                records.append(given)

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
        own = self._own.get(record.step, {})
        if merged is not None:
            own.pop(GRADIENT_NORM, None)  # that of this rank's own gradients
            if GRADIENT_NORM in merged.scalars:
                own[GRADIENT_NORM] = merged.scalars[GRADIENT_NORM]
        return merged

    def _begin_line(self) -> None:
        if self.exchange is not None:
            self.exchange.line += 1

    def _record_scalars(self, steps: Sequence[StepScalars]) -> None:
        closed: list[Numbers] = []
        for one in steps:
            record = partial(self._record_scalars_of, one, closed)
            self._attempt("recording a step", "the step is lost", record)
        self._sinks.write_scalars(self.rank, closed, self.patience)

    def _record_scalars_of(self, scalars: StepScalars, into: list[Numbers]) -> None:
        """Record the scalars of a step, and add what the sinks are to get."""
        step, time_, _, is_open, samples = scalars
        values = scalars.resolved()
        if is_open:
            if self._monitor is not None:
                self._monitor.write_unclosed(step, values)
            return
        for name, value in self._own.pop(step, {}).items():
            values.setdefault(name, value)
        if self.latest is not None and self.latest.step == step:
            self.latest.complete(values)
        self._write(lambda writer: writer.write_scalars(step, time_, values, samples))
        if self._monitor is not None:
            self._monitor.write_scalars(step, self.rank, values)
        into.append((step, values))

    def _write_record(self, record: StepRecord) -> None:
        if not self._write(lambda writer: writer.write(record)):
            self._skip(record.step, "error")  # where the writer has the step, this does nothing
        if self._writer is not None and self._writer.lost:
            what = f"keeping the steps for out = {str(self._writer.path)!r}"
            self.notify(what, f"too many wait for the disk; steps from {record.step} on are lost")

    def _skip(self, step: int, reason: str) -> None:
        self._write(lambda writer: writer.skip(step, reason))

    def _write(self, action: Callable[[RunWriter], object]) -> bool:
        """Whether the writer could do something; it tries again by itself what a full disk refuses,
        and is given up where another error comes."""
        writer = self._writer
        if writer is None:
            return True
        what = f"writing to out = {str(writer.path)!r}"
        try:
            action(writer)
        except Exception as error:
            # Another process writes the run, or it is a bug: to try again cannot help.
            passes = isinstance(error, OSError | MemoryError)
            if passes and not isinstance(error, FileExistsError):
                self.notify(what, f"{error_text(error)}; the writer tries again")
            else:
                self._writer = None
                # The first failure of each is told.
                again = " again" if what in self.failures else ""
                why = f"{error_text(error)}; nothing more is written"
                self.notify(what + again, why)
            return False
        return True

    def _end(self, coverage: Mapping[str, Any] | None, patience: float | None) -> None:
        """Close the writer and the sinks; once."""
        if self._has_ended:
            return
        try:
            if coverage is not None and (late := self.failures_of_all()):
                coverage = {**coverage, "failures": {**coverage.get("failures", {}), **late}}
            writer, self._writer = self._writer, None
            if writer is not None:
                what = f"closing out = {str(writer.path)!r}"
                lost = "steps that are not on the disk are lost"
                is_whole = self._attempt(what, lost, partial(writer.close, coverage))
                self._attempt(what, "no other watch may write the run", writer.unlock)
                if self._upload is not None:
                    self._upload.end()
                if is_whole and self.last_words is not None and self.rank == 0:
                    path = short_path(writer.path) if self._upload is None else self._upload.url
                    say(f"{path}: {self.last_words()}: hookstats show {path}")
            self._notices.finish(self.patience)
            self._sinks.close(patience)
            for worker in self._of_rules.values():
                worker.end(patience)
        finally:
            self._has_ended = True
            atexit.unregister(self._at_exit)

    def _perform(self, rule: Rule, action: Callable[[], object]) -> Any:
        """What a user's part of a rule, which may hang, returns on a thread for that rule."""
        worker = self._of_rules.setdefault(id(rule), Worker("hookstats-rule"))
        found: list[Any] = []
        errors: list[BaseException | None] = []
        if not worker.is_lost:
            worker.call([lambda: errors.append(error_of(lambda: found.append(action())))])
            worker.wait(self.patience)
        if worker.is_lost:
            raise RuntimeError(f"no return within {self.patience:g} s")
        for error in filter(None, errors):
            raise error
        return found[0]

    def _attempt(self, what: str, outcome: str, action: Action) -> bool:
        """Whether `action` succeeded; warn of the first error."""
        error = error_of(action)
        if error is not None:
            self.notify(what, f"{error_text(error)}; {outcome}")
        return error is None
