"""Cost: the time that watching takes from the training, step by step."""

from __future__ import annotations

import time

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.records.speeds import COST


class Cost:
    """What hooks and closing steps cost; nothing is known without C++ hooks."""

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._closing = 0.0  # outside of the lock
        self._before = 0.0
        self._began: tuple[float | None, float] = None, 0.0  # what the lock was held, and when

    def __enter__(self) -> None:
        """Begin to count the time of the block, that of closing a step."""
        self._began = self._buffers.seconds(), time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            return
        (held, start), now = self._began, time.perf_counter()
        held_now = self._buffers.seconds()
        if held is not None and held_now is not None:
            self._closing += max(0.0, now - start - (held_now - held))

    def total(self) -> float | None:
        """The seconds that watching has cost so far; None where nothing is known."""
        held = self._buffers.seconds()
        return None if held is None else held + self._closing

    def since(self) -> dict[str, float]:
        """The cost since the last call of this until the block began, as a scalar by its name."""
        held = self._began[0]
        if held is None:
            return {}
        before, self._before = self._before, held + self._closing
        return {COST: self._before - before}
