"""Closed: a step for the flush thread, without a training run."""

from __future__ import annotations

import threading

from support.samples import sample

from hookstats.records.record import StepRecord


class Closed:
    """A closed step, as an arena would hand out; counts how often it is copied out and released."""

    def __init__(self, wait: threading.Event | None = None, error: Exception | None = None) -> None:
        self.wait = wait
        self.error = error
        self.released = self.taken = 0
        self.thread = ""

    is_small = False
    nbytes = 1000

    def take_out(self) -> None:
        self.taken += 1
        if self.error is not None:
            raise self.error

    def to_record(self, step: int, rank: int) -> StepRecord:
        self.thread = threading.current_thread().name
        if self.wait is not None:
            assert self.wait.wait(20)
        if self.error is not None:
            raise self.error
        return sample(step, rank)

    def release(self) -> None:
        self.released += 1
