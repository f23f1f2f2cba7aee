"""Schedule: which steps a watch records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hookstats.kernels.sampling import Sampling
from hookstats.rules import Monitor
from hookstats.stats.warning import warn
from hookstats.watching.budget import Budget
from hookstats.watching.meter import Meter
from hookstats.watching.reduce import Exchange
from hookstats.watching.settings import Settings

_SELDOM = 4  # with so many steps from one that is recorded to the next, hooks go in between


class Schedule:
    """The multiples of `every`, and some steps in a row once rules found an error.

    With a budget, `every` is that of the settings times what the budget allows, and histograms are
    sampled once it allows less than all; the steps after an error lie outside of it. Ranks that
    merge their records agree on it: each says in the exchange of a step what it wants, and all take
    the greatest two recorded steps later.
    """

    def __init__(
        self,
        settings: Settings,
        monitor: Monitor,
        meter: Meter,
        sampling: Sampling,
        exchange: Callable[[], Exchange | None],
    ) -> None:
        """exchange: that of the ranks, as long as they merge."""
        self._every = settings.every
        self._after = settings.after
        self._monitor = monitor
        self._meter = meter
        self._sampling = sampling
        self._exchange = exchange
        self._budget: Budget | None = None
        if settings.budget is not None:
            self._budget = Budget(settings.budget, settings.every, samples=settings.may_sample)
        self._urgent = 0  # how many of the monitor's urgent alerts were acted on
        self._is_blind = False  # nothing can be measured
        self._urgent_steps = range(0)  # which are all recorded
        self.failures: dict[str, str] = {}
        """That the budget is out of reach, or that nothing can be measured."""

    @property
    def every(self) -> int:
        """The steps that are multiples of it are recorded."""
        return self._every if self._budget is None else self._budget.every

    @property
    def is_seldom(self) -> bool:
        """Whether so few steps are recorded that hooks go in between."""
        return self.every >= _SELDOM

    def is_due(self, step: int) -> bool:
        """Whether the open step is to be recorded."""
        if self._monitor.urgent > self._urgent:
            self._urgent = self._monitor.urgent
            self._urgent_steps = range(step, step + self._after)
        if self._budget is not None:
            self._agree(self._budget, step)
        return step % self.every == 0 or step in self._urgent_steps

    def close(self, recorded: bool) -> None:
        """Take what the step that was closed took."""
        budget = self._budget
        if budget is None or self._is_blind:
            return
        try:
            for measured in self._meter.close(recorded):
                budget.note(measured)
        except Exception as error:  # such as a device without events that tell the time
            self._is_blind = True
            why = f"{type(error).__name__}: {error}; every = {budget.every} stays"
            self._fail("measuring what steps take", why)
        if budget.is_out_of_reach:
            takes = f"watching takes {budget.takes:.2%} of the training's time"
            why = f"{takes} at every = {budget.every}, too much however few steps are recorded"
            self._fail(f"keeping to budget = {budget.share:g}", why)

    def _fail(self, what: str, why: str) -> None:
        if what not in self.failures:
            self.failures[what] = why
            warn(f"hookstats: {what} failed: {why}")

    def report(self) -> dict[str, Any] | None:
        """What the budget chose and what it costs; None without a budget."""
        return None if self._budget is None else self._budget.report()

    def _agree(self, budget: Budget, step: int) -> None:
        exchange = self._exchange()
        if exchange is None:
            self._choose(budget, budget.wanted)
            return
        exchange.wanted = budget.wanted
        while exchange.agreed and exchange.agreed[0][0] > step:  # before training went back
            exchange.agreed.popleft()
        # Ranks have the same agreements. Two recorded steps later, all have got this one, or it is
        # late on some, and steps of theirs are not merged until then.
        while exchange.agreed and exchange.agreed[0][0] + 2 * budget.every <= step:
            self._choose(budget, exchange.agreed.popleft()[1])

    def _choose(self, budget: Budget, factor: int) -> None:
        whole = not budget.is_sampled
        budget.choose(factor)
        if whole and budget.is_sampled:
            self._sampling.begin()
