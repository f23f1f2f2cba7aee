"""Patience: how long something may take, by a clock that stops where the process does."""

from __future__ import annotations

import time

TICK = 0.5
"""The most seconds that count from one question to the next."""


class Patience:
    """Seconds of waiting. A process that is stopped, by SIGSTOP or with its machine, asks once
    afterwards, which counts as one `TICK`."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds
        self._asked = time.monotonic()

    @property
    def tick(self) -> float:
        """How long to wait before `is_over` is asked again."""
        return min(TICK, max(0.0, self._left))

    def is_over(self) -> bool:
        """Whether the seconds are over."""
        asked, self._asked = self._asked, time.monotonic()
        self._left -= min(self._asked - asked, TICK)
        return self._left <= 0
