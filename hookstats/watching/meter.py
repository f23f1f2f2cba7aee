"""Meter: what steps take, and what watching them costs, measured as they close."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch

from hookstats.arena.arena import Arena
from hookstats.arena.staging import event
from hookstats.watching.budget import Measured
from hookstats.watching.cost import Cost
from hookstats.watching.mailbox import Mailbox

_MOST_WAITING = 64
"""How many steps a device may be behind before they are not measured."""


class _Mark(NamedTuple):
    """The end of a step on a device."""

    event: torch.Event
    recorded: bool


class Meter:
    """Measures steps by the clock, or on a device by its events; nothing waits for the device.

    On the CPU, hooks and the closing of steps are timed on their threads, and what the background
    thread takes counts in full: where it takes a core from threads that compute, all of them wait
    for that one, and Python's lock is one for all. What else watching takes, and all that it takes
    on a device, shows in the difference between steps.
    """

    def __init__(self, arena: Arena, cost: Cost, mailbox: Mailbox) -> None:
        self._arena = arena
        self._cost = cost
        self._mailbox = mailbox
        self._before: tuple[float, float | None] | None = None  # when, and what all had cost
        self._marks: deque[_Mark] = deque()  # of the device, oldest first

    def close(self, recorded: bool) -> Iterator[Measured]:
        """What was measured of steps, after one was closed; a device's steps come later."""
        device = next((d for d in self._arena.shelves if d.type != "cpu"), None)
        if device is None:
            yield from self._on_host(recorded)
            return
        self._marks.append(_Mark(event(device, timed=True), recorded))
        while len(self._marks) > 1 and self._marks[1].event.query():
            first = self._marks.popleft()
            last = self._marks[0]
            seconds = first.event.elapsed_time(last.event) / 1e3
            yield Measured(last.recorded, seconds, None)
        if len(self._marks) > _MOST_WAITING:
            self._marks.clear()

    def _on_host(self, recorded: bool) -> Iterator[Measured]:
        now, total = time.perf_counter(), self._cost.total()
        before, self._before = self._before, (now, total)
        if before is None:  # the first step has no beginning
            return
        began, had = before
        cost = None if total is None or had is None else total - had
        yield Measured(recorded, now - began, cost, now, self._mailbox.spent)
