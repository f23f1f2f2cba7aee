"""Mailbox: what training asks of the flush thread, and when the thread looks."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

from hookstats.arena.flag import Flag
from hookstats.watching.requests import Close, Drain, Request, Step

REST = 0.25
"""The seconds that the flush thread sleeps after it recorded steps: others come together then."""

TOGETHER = 32
"""How many steps are worth waking the thread for."""


class Mailbox:
    """Requests by several threads to the one that takes them, in order.

    After steps, that thread sleeps for `rest` before it takes more: waking it for each step of a
    small model, to run Python beside the training, costs the training more than the step.
    """

    def __init__(self) -> None:
        self.rest = REST
        """The seconds of a sleep."""
        # Its put is one C call: a KeyboardInterrupt comes before or after it, never during it.
        self._queue: SimpleQueue[Request] = SimpleQueue()
        self._next: Request | None = None  # taken from the queue, and still to be served
        self._waited_for: deque[Request] = deque()  # those of them that somebody waits for
        self.spent = 0.0
        """The CPU time, in seconds, that the thread has taken since it served its first step; that
        one takes imports along."""
        self._had: float | None = None  # the thread's CPU time when it got the last request
        self._is_due = False  # a sleep
        self._flag = Flag()  # ends the sleep
        self._rung = False
        self._begun = False  # whether a step was served

    def __len__(self) -> int:
        """How many requests wait."""
        return self._queue.qsize()

    def put(self, request: Request) -> None:
        """Ask for something. Large steps, and as many as are worth it, wake the thread."""
        self._queue.put(request)
        is_large = isinstance(request, Step) and not request.snapshot.is_small
        if is_large or len(self) >= TOGETHER:
            self.ring()

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
        if self._had is not None:
            self.spent += max(0.0, time.thread_time() - self._had)  # less in a thread that is new
        if self._is_due and self.rest and self._next is None:
            self._flag = Flag()
            if not len(self):  # an interrupt may have kept a request from coming
                self._waited_for.clear()
            if not (self._rung or self._waited_for or len(self) >= TOGETHER):
                self._flag.wait(self.rest)
        self._is_due = self._rung = False
        request, self._next = self._next, None
        if request is None:
            with suppress(Empty):
                request = self._queue.get(timeout=seconds)
        self._is_due = isinstance(request, Step)
        if self._had is not None or self._begun:
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
                self._next = request = self._queue.get_nowait()
                if not (isinstance(request, Step) and request.step > steps[-1].step):
                    break
                steps.append(request)
                self._next = None
        return steps
