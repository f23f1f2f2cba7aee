"""Budget: how many steps apart records are, so that watching takes at most a share of the time.

It knows no clock: whoever closes steps says what each took, and what watching it cost.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Any, NamedTuple

_ENOUGH = 4
"""After so many recorded steps there is a decision, about these."""
_OTHERS = 48
"""By so many steps that were not recorded one knows what a step takes."""
_NEIGHBOURS = 8
"""So many steps before a recorded one say what it would have taken."""
_HIDDEN = 32
"""By so many recorded steps one knows what recording takes beside the time of hooks."""
_MOST = 1024
"""The greatest factor: where that is too much, the budget is out of reach."""
_ABOVE = 1.2
"""Where watching takes so many times the budget, fewer steps are recorded."""
_BELOW = 0.7
"""More steps are recorded where they take so much of the budget at most."""
_OF_MEDIAN = 1.2533 * 1.4826
"""The standard error of a median of normal values, by their median absolute deviation and the root
of their number."""
_ROUNDING = 1e-6
_MOST_KEPT = 8192
"""Where the clock goes back or stands still, so many steps stand for the window below."""
_WINDOW = 2.0
"""The seconds, at least, over which the background thread's work is averaged."""


class Measured(NamedTuple):
    """What a closed step took."""

    recorded: bool
    seconds: float
    """From the close of the step before to its own."""
    cost: float | None
    """The seconds of these in which hooks ran on the threads of the training, and the step closed;
    None where that is not known but by comparing steps that are recorded with others."""
    at: float = 0.0
    """When it was closed, in seconds from anywhere."""
    background: float = 0.0
    """The seconds that the background thread has taken from the training so far."""


class _Costs(NamedTuple):
    """Seconds by step."""

    base: float
    """What a step takes without watching."""
    recorded: float
    """What watching adds to a step that is recorded."""
    idle: float
    """What watching adds to any other step."""

    def share(self, every: int) -> float:
        """What watching takes, by what training takes, if one of `every` steps is recorded."""
        return self.idle_share + self.added(every)

    @property
    def idle_share(self) -> float:
        """What watching takes where nothing is recorded, by what training takes."""
        return self.idle / self.base

    def added(self, every: int) -> float:
        """What one recorded step of `every` adds to that."""
        more = max(0.0, self.recorded - self.idle)
        return more / every / self.base


class Budget:
    """Chooses a power of two, `factor`: of the steps that may be recorded, one of so many is.

    The multiples of different factors are nested, so that ranks which choose for themselves record
    common steps. A factor that is too small grows to what the budget needs after four recorded
    steps; it falls only where far less than the budget is taken. Where it has to grow after it
    fell, the next fall needs twice as much room, so that it never goes back and forth for long.

    When the factor grows for the first time, histograms begin to be sampled: if that is what helps,
    the factor falls again after four more recorded steps. They are sampled for good, as what they
    would cost otherwise is not known any more.

    What hooks take by the clock is not all: calls of modules with hooks take longer, and training
    finds less in its caches. That is known by comparing steps that are recorded with others, so the
    first ones alternate.
    """

    def __init__(self, share: float, every: int = 1, *, samples: bool = False) -> None:
        """share: of the training's time, above 0. every: the steps that may be recorded.

        samples: whether histograms may be sampled.
        """
        self.share = share
        self.factor = 1
        """What is chosen."""
        self.wanted = 1
        """What would be chosen by what was measured."""
        self.is_sampled = False
        """Whether histograms are sampled, so that larger ones cost less."""
        self.is_out_of_reach = False
        """Whether watching takes more than `share`, however few steps are recorded. What recorded
        steps add is then held to half of it."""
        self._every = every
        self._samples = samples
        self._new = 0  # recorded steps since the choice
        self._below = _BELOW
        self._fell = False  # at the last choice
        self._recorded: deque[Measured] = deque(maxlen=_ENOUGH)
        self._others: deque[Measured] = deque(maxlen=_OTHERS)
        self._background: deque[Measured] = deque(maxlen=_MOST_KEPT)
        # By recorded step, the seconds beside those of hooks that others before it did not take.
        self._differences: deque[float] = deque(maxlen=_HIDDEN)

    @property
    def every(self) -> int:
        """The steps that are multiples of it are recorded."""
        return self._every * self.factor

    @property
    def takes(self) -> float | None:
        """The share that watching takes, by the last steps; None where too few are measured."""
        costs = self._costs() if len(self._recorded) == _ENOUGH else None
        return None if costs is None else costs.share(self.every)

    def note(self, step: Measured) -> None:
        """Take what a step took, and see whether `wanted` is another factor now."""
        (self._recorded if step.recorded else self._others).append(step)
        if not step.recorded:
            return
        if self.every < self._comparing * self._every:
            self.wanted = self._comparing
            return
        if step.cost is not None and self.every > 1 and len(self._others) >= _ENOUGH:
            before = list(self._others)[-_NEIGHBOURS:]
            self._differences.append(_besides(step) - median(map(_besides, before)))
        self._note_background(step)
        self._new += 1
        costs = self._costs() if self._new >= _ENOUGH else None
        if costs is not None:
            self.is_out_of_reach = costs.share(self._every * _MOST) > _ABOVE * self.share
            self.wanted = self._judge(costs)

    @property
    def _comparing(self) -> int:
        """The least factor with which there are steps to compare recorded ones with, as long as
        they have to be compared."""
        return 1 if self._every > 1 or len(self._differences) >= _ENOUGH else 2

    def choose(self, factor: int) -> None:
        """Have this factor; another one is looked at from now on."""
        if factor == self.factor:
            return
        self.is_sampled |= self._samples and factor > max(self.factor, self._comparing)
        if factor > self.factor and self._fell:
            self._below /= 2
        self._fell = factor < self.factor
        self.factor, self._new = factor, 0

    def report(self) -> dict[str, Any]:
        """What was chosen and what it costs, as JSON-able types."""
        return {
            "share": self.share,
            "every": self.every,
            "takes": self.takes,
            "is_out_of_reach": self.is_out_of_reach,
            "is_sampled": self.is_sampled,
        }

    def _judge(self, costs: _Costs) -> int:
        # Where other steps take it all, fewer records would hardly help.
        left = max(self.share - costs.idle_share, self.share / 2)
        if costs.added(self.every) > _ABOVE * left:
            return self._least(costs, left)
        return min(self.factor, self._least(costs, self._below * left))

    def _least(self, costs: _Costs, share: float) -> int:
        """The least factor with which recorded steps add at most this share."""
        factor = self._comparing
        share *= 1 + _ROUNDING
        while factor < _MOST and costs.added(self._every * factor) > share:
            factor *= 2
        return factor

    def _costs(self) -> _Costs | None:
        """What steps take by what was measured; None if too little was, or the clock stood."""
        if self._recorded[-1].cost is None:
            if len(self._others) < _ENOUGH:
                return None
            base = _usual(step.seconds for step in self._others)
            with_records = _usual(step.seconds for step in self._recorded)
            return _Costs(base, max(0.0, with_records - base), 0.0) if base > 0 else None
        enough, hidden = len(self._others) >= _ENOUGH, self._hidden()
        if self.every > 1 and enough:
            base = _usual(map(_besides, self._others))
        else:
            base = _usual(map(_besides, self._recorded)) - hidden
        if not base > 0:
            return None
        return _Costs(
            base,
            _usual(step.cost or 0.0 for step in self._recorded) + hidden + self._in_background(),
            _usual(step.cost or 0.0 for step in self._others) if enough else 0.0,
        )

    def _hidden(self) -> float:
        """The seconds that a recorded step takes beside those of hooks, as far as they are no
        chance: the median, less twice its standard error."""
        if len(self._differences) < _ENOUGH:
            return 0.0
        middle = median(self._differences)
        spread = median(abs(each - middle) for each in self._differences)
        error = _OF_MEDIAN * spread / math.sqrt(len(self._differences))
        return max(0.0, middle - 2 * error)

    def _note_background(self, step: Measured) -> None:
        kept = self._background
        kept.append(step)
        while len(kept) > _ENOUGH + 1 and step.at - kept[1].at >= _WINDOW:
            kept.popleft()

    def _in_background(self) -> float:
        """The seconds of the background thread by recorded step."""
        first, last = self._background[0], self._background[-1]
        return (last.background - first.background) / max(1, len(self._background) - 1)


def _besides(step: Measured) -> float:
    """The seconds of a step in which no hook ran."""
    return step.seconds - (step.cost or 0.0)


def _usual(seconds: Iterable[float]) -> float:
    """What a third of these are below, at most: what else the machine does only adds to them."""
    found = sorted(seconds)
    return found[(len(found) - 1) // 3]
