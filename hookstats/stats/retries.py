"""Retries: what fails is called again, after pauses that grow; what always fails is ended.
Patience: how long something may take, by a clock that stops where the process does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TypeVar

from hookstats.stats.messages import error_text, warn

TRIES = 8
"""So many failures in a row end what is called, unless its errors may pass by themselves."""

LONGEST_PAUSE = 256
"""The most calls that are left out between two tries."""

_PASSING = (OSError, MemoryError)
_T = TypeVar("_T")


@dataclass
class _Failing:
    """What failed when it was called last."""

    what: str
    times: int = 0
    """How often it failed in a row."""
    left: int = 0
    """How many calls are still to be left out; -1 for all."""


@dataclass
class _Told:
    """What users are told of a thing that failed at any time."""

    error: str
    missed: int = 0
    """The calls that failed or were left out."""
    outcome: str = ""

    def __str__(self) -> str:
        calls = f"{self.missed} call{'s' * (self.missed != 1)} missed"
        return "; ".join(filter(None, (self.error, calls, self.outcome)))


class Retries:
    """Says of things that are called at each step, such as rules and sinks, whether to call them.

    After a failure one call is left out, after the next failure in a row two, then four, up to
    `LONGEST_PAUSE`. `TRIES` failures in a row end the thing, unless the last one was an OSError or
    a MemoryError, which may pass at any time. It counts calls and knows no clock: the same records
    give the same calls.

    A thing has one RuntimeWarning when it first fails, one when it first works again, and one when
    it is ended.
    """

    def __init__(self, failures: dict[str, str]) -> None:
        """failures: gets what is known of each thing that failed at any time, by its name."""
        self._failures = failures
        self._failing: dict[Hashable, _Failing] = {}
        self._told: dict[str, _Told] = {}

    def tried(self, key: Hashable, what: str, outcome: str, action: Callable[[], _T]) -> _T | None:
        """What an action returns; None where it is not due, or fails. See `failed`."""
        if not self.is_due(key):
            return None
        try:
            found = action()
        except Exception as error:
            self.failed(key, what, error, outcome)
            return None
        self.worked(key)
        return found

    def is_ended(self, key: Hashable) -> bool:
        """Whether the thing of this key is not called any more."""
        failing = self._failing.get(key)
        return failing is not None and failing.left < 0

    def is_due(self, key: Hashable) -> bool:
        """Whether to call the thing of this key now; if not, the call counts as missed."""
        failing = self._failing.get(key)
        if failing is None or not failing.left:
            return True
        if failing.left > 0:
            failing.left -= 1
        self.miss(failing.what)
        return False

    def worked(self, key: Hashable) -> None:
        """Note that a call succeeded."""
        failing = self._failing.pop(key, None)
        if failing is None:
            return
        told = self._told[failing.what]
        is_news, told.outcome = not told.outcome, "it works again"
        self._failures[failing.what] = str(told)
        if is_news:
            warn(f"hookstats: {failing.what} works again; calls that it missed: {told.missed}")

    def failed(self, key: Hashable, what: str, error: BaseException, outcome: str) -> bool:
        """Note that a call failed; whether the thing is ended by that, with this outcome."""
        failing = self._failing.setdefault(key, _Failing(what))
        failing.times += 1
        failing.left = min(2 ** (failing.times - 1), LONGEST_PAUSE)
        why = error_text(error)
        if is_news := what not in self._told:
            self._told[what] = _Told(why)
        self.miss(what)
        if failing.times >= TRIES and not isinstance(error, _PASSING):
            failing.left = -1
            self.end(what, f"{why}, {failing.times} times in a row; {outcome}")
        elif is_news:
            warn(f"hookstats: {what} failed: {why}; it is called again at later steps")
        return failing.left < 0

    def end(self, what: str, why: str) -> None:
        """Warn that a thing has failed, and is not called any more."""
        missed = self._told[what].missed if what in self._told else 0
        self._told[what] = _Told(why, missed)
        self._failures[what] = str(self._told[what])
        warn(f"hookstats: {what} failed: {why}")

    def miss(self, what: str, calls: int = 1) -> None:
        """Count calls that a thing that failed has missed."""
        told = self._told[what]
        told.missed += calls
        self._failures[what] = str(told)


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
