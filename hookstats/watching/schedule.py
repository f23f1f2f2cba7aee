"""Schedule, Cost: which steps a watch records, and what recording and watching take.

With ``every="auto"`` the first 64 steps are recorded and the next 32 are not: the difference is
what recording takes. Then every 2^k-th step is recorded, with the least k whose cost stays within
the budget. At each multiple of 8192, 16 steps in a row are recorded, which tells the cost again: k
then changes by one at most, and never returns to what once took too much.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch

from hookstats.buffers.double_buffer import DoubleBuffer
from hookstats.buffers.staging import event
from hookstats.records.norms import COST
from hookstats.rules import Monitor
from hookstats.watching.reduce import Exchange

AFTER = 10
"""The steps in a row that are recorded after an incident."""
FIRST = 64
"""The steps at the beginning that are all recorded."""
IDLE = 32
"""The steps after these, of which none is recorded."""
PERIOD = 8192
BURST = 16
MOST = 10
"""The greatest k."""
_ABOVE, _BELOW = 1.2, 0.7  # of the budget: what makes k grow, and where it may fall
_SELDOM = 4  # from this distance between recorded steps on, hooks go in between
_MOST_WAITING = 64  # how many steps a device may be behind before they are not measured


class Schedule:
    """The multiples of `every`, and ten steps in a row after an incident, a leap of a logged loss
    or what a rule suspects; with "auto" also after a new number of the step, or a change of a
    learning rate by more than 2.

    Multiples of different 2^k are nested, so that ranks which choose for themselves record common
    steps. Ranks that merge their records agree: each says in the exchange of a step which k it
    wants, and all take the greatest two recorded steps later.
    """

    def __init__(
        self,
        every: int | str,
        budget: float,
        monitor: Monitor,
        buffers: DoubleBuffer,
        background: Callable[[], float],
        exchange: Callable[[], Exchange | None],
    ) -> None:
        """background: the CPU seconds of the background threads so far. exchange: that of the
        ranks, as long as they merge."""
        self._fixed = every if isinstance(every, int) else None
        self._budget = budget
        self._monitor = monitor
        self._buffers = buffers
        self._background = background
        self._exchange = exchange
        self._urgent = 0  # how many of the monitor's urgent alerts were acted on
        self._row = range(0)  # steps that are all recorded
        self._rates: Mapping[str, object] = {}
        self._closed = 0  # steps
        self._k = self._wanted = 0
        self._lowest = 0  # what is below took too much
        self._takes: float | None = None  # what recording adds to a step, by what the step takes
        self._before: float | None = None  # when the last step was closed
        self._marks: deque[tuple[torch.Event, bool]] = deque()  # the ends of steps on a device
        self._with_record: deque[float] = deque(maxlen=BURST)  # seconds of steps
        self._without: deque[float] = deque(maxlen=IDLE)
        self._records = 0  # since `_spent`
        self._spent = 0.0  # the seconds of the background threads before
        self.choices: list[dict[str, Any]] = []
        """Each choice: from which `step` on, one of how many (`every`) is recorded, and the share
        of the training's time that this `takes`."""

    @property
    def every(self) -> int:
        """The steps that are multiples of it are recorded."""
        return 1 << self._k if self._fixed is None else self._fixed

    @property
    def is_seldom(self) -> bool:
        """Whether so few steps are recorded that hooks go in between."""
        return self.every >= _SELDOM or self._is_idle

    @property
    def _is_idle(self) -> bool:
        return self._fixed is None and FIRST <= self._closed < FIRST + IDLE

    def is_due(self, step: int) -> bool:
        """Whether the open step is to be recorded."""
        if self._monitor.urgent > self._urgent:
            self._urgent = self._monitor.urgent
            self._row = range(step, step + AFTER)
        if self._fixed is None:
            self._agree(step)
            if self._closed < FIRST or step % PERIOD < BURST:
                return True
        return step in self._row or (step % self.every == 0 and not self._is_idle)

    def renumber(self, step: int) -> None:
        """The training gave the open step a number itself, as where it is resumed."""
        self._row = range(step, step + AFTER) if self._fixed is None else range(0)

    def close(self, step: int, recorded: bool, rates: Mapping[str, object]) -> None:
        """Take what the step that was closed took, and the learning rates that it had: those on a
        device are not looked at."""
        self._closed += 1
        if self._fixed is not None:
            return
        if rates != self._rates:
            if any(_leaps(self._rates.get(name, rate), rate) for name, rate in rates.items()):
                self._row = range(step + 1, step + 1 + AFTER)
            self._rates = rates
        for of_record, seconds in self._measured(recorded):
            (self._with_record if of_record else self._without).append(seconds)
        self._records += recorded
        if self._closed == FIRST // 2:  # what comes first in a process takes longer
            self._spent, self._records = self._background(), 0
        if self._closed == FIRST + IDLE:
            self._choose(is_first=True)
        elif self._closed > FIRST + IDLE and step % PERIOD == BURST:
            self._choose(is_first=False)

    def report(self) -> dict[str, Any] | None:
        """What was chosen, as JSON-able types; None where `every` is a number."""
        return None if self._fixed else {"share": self._budget, "choices": list(self.choices)}

    def _measured(self, recorded: bool) -> Iterator[tuple[bool, float]]:
        """The seconds of the step that was closed, and whether it is recorded; on a device those of
        the steps that it has done, by its own events. Nothing waits for the device."""
        device = next((d for d in self._buffers.devices if d.type != "cpu"), None)
        if device is None:
            before, self._before = self._before, time.perf_counter()
            if before is not None:
                yield recorded, self._before - before
            return
        self._marks.append((event(device, timed=True), recorded))
        while len(self._marks) > 1 and self._marks[1][0].query():
            first, _ = self._marks.popleft()
            last, of_record = self._marks[0]
            yield of_record, first.elapsed_time(last) / 1e3
        if len(self._marks) > _MOST_WAITING:
            self._marks.clear()

    def _choose(self, *, is_first: bool) -> None:
        """Choose k by what steps took. What the background threads take counts in full: where one
        takes a core from threads that compute, all of them wait for that one."""
        before, self._spent = self._spent, self._background()
        records, self._records = self._records, 0
        if min(len(self._with_record), len(self._without)) < BURST // 2:
            return
        base = median(self._without)
        if base <= 0:
            return
        added = max(0.0, median(self._with_record) - base)
        self._takes = (added + (self._spent - before) / max(1, records)) / base
        if is_first:
            while self._wanted < MOST and self._takes / (1 << self._wanted) > self._budget:
                self._wanted += 1
        elif self._takes / (1 << self._k) > _ABOVE * self._budget:
            self._wanted = self._lowest = min(MOST, self._k + 1)
        elif self._k > self._lowest and self._takes / (1 << self._k - 1) < _BELOW * self._budget:
            self._wanted = self._k - 1

    def _agree(self, step: int) -> None:
        """Take what is wanted, or with ranks that merge, what all of them agreed on."""
        exchange = self._exchange()
        if exchange is None:
            self._take(self._wanted, step)
            return
        exchange.wanted = self._wanted
        while exchange.agreed and exchange.agreed[0][0] > step:  # before training went back
            exchange.agreed.popleft()
        # Ranks have the same agreements. Two recorded steps later, all have got this one, or it is
        # late on some, and steps of theirs are not merged until then.
        while exchange.agreed and exchange.agreed[0][0] + 2 * self.every <= step:
            self._take(exchange.agreed.popleft()[1], step)

    def _take(self, k: int, step: int) -> None:
        if k != self._k or (not self.choices and self._takes is not None):
            self._k = k
            takes = None if self._takes is None else self._takes / (1 << k)
            self.choices.append({"step": step, "every": 1 << k, "takes": takes})


def _leaps(before: object, now: object) -> bool:
    """Whether a learning rate changed by more than 2, if it is no device that knows."""
    if not (isinstance(before, float) and isinstance(now, float)):
        return False
    low, high = sorted((abs(before), abs(now)))
    return high > 2 * low


class Cost:
    """What hooks and closing steps cost; nothing is known without C++ hooks."""

    def __init__(self, buffers: DoubleBuffer) -> None:
        self._buffers = buffers
        self._closing = 0.0  # outside of the lock
        self._before = 0.0
        self._start = 0.0
        self._held: float | None = None  # what the lock was held, where the block asked

    def __enter__(self) -> None:
        """Begin to count the time of the block, that of closing a step."""
        self._start, self._held = time.perf_counter(), None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        took = time.perf_counter() - self._start
        if self._held is not None:
            took -= (self._buffers.seconds() or 0.0) - self._held
        self._closing += took

    def since(self) -> dict[str, float]:
        """The cost since the last call of this until now, as a scalar by its name; called in the
        block."""
        self._held = held = self._buffers.seconds()
        if held is None:
            return {}
        before, self._before = self._before, held + self._closing
        return {COST: self._before - before}
