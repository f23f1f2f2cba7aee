"""Mailbox: what training asks of the flush thread, and when the thread looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from hookstats.arena.arena import BYTES_AHEAD
from hookstats.arena.flag import Flag
from hookstats.watching.requests import Close, Drain, Request, Step

REST = 0.25
"""The seconds that the flush thread sleeps after it recorded steps: others come together then."""

TOGETHER = 32
"""How many steps are worth an end of the sleep."""


class Mailbox:
    """Requests by several threads to the one that takes them, in order.

    After steps, that thread sleeps for `rest` before it takes more: to make a record of each step
    of a small model, which is to run Python beside the training, costs the training more than the
    step. It wakes up meanwhile to copy those steps out that the training has not: that is one call
    without the GIL.
    """

    def __init__(self) -> None:
        self.rest = REST
        """The seconds of a sleep."""
        # Its put is one C call: a KeyboardInterrupt comes before or after it, never during it.
        self._queue: SimpleQueue[Request] = SimpleQueue()
        self._held: deque[Request] = deque()  # taken from the queue, and still to be served
        self._waited_for: deque[Request] = deque()  # those of them that somebody waits for
        self.spent = 0.0
        """The CPU time, in seconds, that the thread has taken since it served its first step; that
        one takes imports along."""
        self._had: float | None = None  # the thread's CPU time when some was last added to `spent`
        self._is_due = False  # a sleep
        self._flag = Flag()  # ends the sleep
        self._rung = False
        self._begun = False  # whether a step was served

    def __len__(self) -> int:
        """How many requests wait."""
        return self._queue.qsize() + len(self._held)

    def put(self, request: Request) -> None:
        """Ask for something. Where enough steps wait, the sleep ends."""
        self._queue.put(request)
        if len(self) >= TOGETHER:
            self.ring()
        elif isinstance(request, Step) and not request.snapshot.is_small:
            self._flag.set()  # to have the step copied out

    def hurry(self, request: Request) -> None:
        """Ask for something that somebody waits for: there is no sleep before it."""
        self._waited_for.append(request)
        self._queue.put(request)
        self.ring()

    def ring(self) -> None:
        """End the sleep, or the next one if there is none."""
        # The thread looks for requests after each sleep: a ring that comes as one ends may be lost.
        self._rung = True
        self._flag.set()

    def take(self, seconds: float | None) -> Request | None:
        """The next request, after a sleep if one is due; None if there is none for `seconds`."""
        self._add_time()
        if self._is_due and self.rest and not self._held:
            self._sleep()
        self._is_due = self._rung = False
        request = None
        with suppress(Empty):
            request = self._held.popleft() if self._held else self._queue.get(timeout=seconds)
        self._is_due = isinstance(request, Step)
        self._add_time()
        if self._begun and self._had is None:
            self._had = time.thread_time()
        self._begun |= self._is_due
        if isinstance(request, Drain | Close):
            with suppress(IndexError):
                self._waited_for.popleft()
        return request

    def more(self, first: Step) -> Sequence[Step]:
        """This step, and those after it that wait already, until training goes back."""
        steps = [first]
        with suppress(Empty):
            while len(steps) < TOGETHER:
                request = self._held.popleft() if self._held else self._queue.get_nowait()
                if not (isinstance(request, Step) and request.step > steps[-1].step):
                    self._held.appendleft(request)
                    break
                steps.append(request)
        return steps

    def _sleep(self) -> None:
        """Sleep for `rest`, or until that is ended; copy steps out meanwhile."""
        end, room = time.monotonic() + self.rest, BYTES_AHEAD
        while True:
            self._flag = Flag()
            with suppress(Empty):
                while not self._is_over(end, room):
                    room -= self._hold(self._queue.get_nowait())
            if not len(self):  # an interrupt may have kept a request from coming
                self._waited_for.clear()
            if self._is_over(end, room):
                return
            self._flag.wait(max(0.0, end - time.monotonic()))

    def _is_over(self, end: float, room: int) -> bool:
        """Whether a sleep ends, which it does at `end`, or if no more bytes may come."""
        is_rung = self._rung or bool(self._waited_for)
        return is_rung or len(self) >= TOGETHER or room <= 0 or time.monotonic() >= end

    def _hold(self, request: Request) -> int:
        """Keep a request for later; if it is a step that nobody has copied out, do so. How many
        bytes it has then."""
        self._held.append(request)
        if not isinstance(request, Step) or request.snapshot.is_small:
            return 0
        with suppress(Exception):  # the record meets the error again
            request.snapshot.take_out()
        return request.snapshot.nbytes

    def _add_time(self) -> None:
        """Add what the thread took since the last time to `spent`."""
        if self._had is not None:
            now = time.thread_time()
            self.spent += max(0.0, now - self._had)  # less in a thread that is new
            self._had = now
