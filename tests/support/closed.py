"""Closed: a step for the recorder, without a training run."""

from __future__ import annotations

import threading

from support.samples import sample

from hookstats.records.record import StepRecord


class Closed:
    """A closed step, as a double buffer would hand out; counts how often it is released."""

    def __init__(self, wait: threading.Event | None = None, error: Exception | None = None) -> None:
        self.wait = wait
        self.error = error
        self.released = 0
        self.thread = ""
        self.is_free = True

    nbytes = 1000

    def drain(self) -> None:
        pass

    def to_record(self, step: int, rank: int) -> StepRecord:
        self.thread = threading.current_thread().name
        if self.wait is not None:
            assert self.wait.wait(20)
        if self.error is not None:
            raise self.error
        return sample(step, rank)

    def release(self) -> None:
        self.released += 1
