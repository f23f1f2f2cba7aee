"""View: what has been read of a growing run, and a frame of the terminal that shows it."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hookstats import rules
from hookstats.cli.alerts import alert_lines
from hookstats.cli.inputs import check_chosen, choose
from hookstats.records.keys import Key
from hookstats.records.summary import SiteSummary, summarise
from hookstats.runs.format import PARTS
from hookstats.runs.run import Run
from hookstats.show.terminal import MANY_DEAD, format_number, grid, require_rich

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

WINDOW = 12
"""Recorded steps that the change and the curve of a site are over."""
RECENT = 300
"""Steps that are read of a long run, and caught up with where training is faster: what is going on
now matters more than all that was."""
ALERTS = 4
"""How many are shown."""
LEVELS = "▁▂▃▄▅▆▇█"


class View:
    """Follows one rank of a run; only the chosen layers and kinds are kept."""

    def __init__(
        self,
        run: Run,
        rank: int = 0,
        layers: list[str] | None = None,
        kinds: list[str] | None = None,
    ) -> None:
        self.run = run
        self.rank = rank
        self._layers, self._kinds = layers, kinds
        self._recorded = 0
        self._unread = 0
        self._forget()

    def _forget(self) -> None:
        self.sites: list[SiteSummary] = []
        """Of the step read last."""
        self.alerts: list[rules.Alert] = []
        self._step: int | None = None
        self._skipped = 0
        self._curves: dict[Key, deque[float]] = {}
        self._monitor = rules.Monitor("default")

    def read(self, seconds: float = math.inf) -> bool:
        """Take in what is new, for about so many seconds; whether something is left to read.

        Raises:
            ValueError: the layers and kinds match nothing.
        """
        end = time.monotonic() + seconds
        steps = self.run.steps_of(self.rank)
        if self._step is not None and steps[-1:] < [self._step]:
            self._forget()  # the training went back to a checkpoint
        new = [step for step in steps if self._step is None or step > self._step]
        self._skipped += len(new[:-RECENT])
        new = new[-RECENT:]
        self._recorded, self._unread = len(steps), len(new)
        for step in new:
            self._take(step)
            self._unread -= 1
            if time.monotonic() > end:
                break
        return self._unread > 0

    def _take(self, step: int) -> None:
        record = self.run.record(step, self.rank)
        check_chosen(record.keys(), self._layers, self._kinds)
        chosen = set(choose(record.keys(), self._layers, self._kinds))
        self._step = step
        self.sites = [site for site in summarise(record) if (site.name, site.kind) in chosen]
        for site in self.sites:
            curve = self._curves.setdefault((site.name, site.kind), deque(maxlen=WINDOW))
            curve.append(site.rms)
        found = self._monitor.examine(record)
        self.alerts += [alert for alert in found if (alert.site, alert.kind) in chosen]

    def frame(self, console: Console, rows: int) -> Iterator[RenderableType]:
        """What to print, one below the other; of the table at most so many rows."""
        text = require_rich().text.Text
        yield text(self._headline(), "bold")
        if self._step is None:
            return
        yield ""
        yield self._table(console.encoding.startswith("utf"), rows)
        if rows < len(self.sites):
            yield f"... and {len(self.sites) - rows} more"
        yield ""
        yield from alert_lines(console, self.alerts, ALERTS)

    def _headline(self) -> str:
        rank = f", rank {self.rank}" if self.rank else ""
        if self._step is None:
            return f"{self.run.path}{rank}: no step yet{self._age()}"
        unread = f", {self._unread} still to read" if self._unread else ""
        skipped = f", {self._skipped} skipped" if self._skipped else ""
        recorded = f"{self._recorded} recorded{skipped}{unread}"
        return f"{self.run.path}{rank}: step {self._step}, {recorded}{self._age()}"

    def _age(self) -> str:
        if self.run.coverage is not None:
            return ", closed"
        written = [part.stat().st_mtime for part in (self.run.path / PARTS).glob("*.parquet")]
        return f", written {time.time() - max(written):.0f} s ago" if written else ""

    def _table(self, curves: bool, rows: int) -> Table:
        text = require_rich().text.Text
        table = grid(
            *("layer", "kind"),
            *[f"rms, last {WINDOW}"] * curves,
            *("rms", "change", "non-\nfinite", "dead"),
            text=2 + curves,
        )
        for site in sorted(self.sites, key=self._urgency)[:rows]:
            curve = self._curves[site.name, site.kind]
            many_dead = site.dead and site.dead >= MANY_DEAD * site.channels
            table.add_row(
                text(site.name or "(root)"),
                text(site.kind),
                *[text(draw(curve), "cyan")] * curves,
                format_number(site.rms) if site.finite else "-",
                change(curve),
                text(str(site.nonfinite), "bold red" if site.nonfinite else ""),
                text(f"{site.dead}/{site.channels}", "yellow" if many_dead else ""),
            )
        return table

    def _urgency(self, site: SiteSummary) -> tuple[bool, float]:
        """Sorts what is not finite first, then what changed most."""
        factor = _factor(self._curves[site.name, site.kind])
        moved = 0.0 if math.isnan(factor) else abs(math.log(factor)) if factor else math.inf
        return not site.nonfinite, -moved


def draw(curve: deque[float]) -> str:
    """The values as blocks, from zero to their maximum; a space where there is no value."""
    top = max((value for value in curve if math.isfinite(value)), default=0.0)

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        share = min(value / top, 1.0) if top else 0.0
        return LEVELS[math.ceil(share * (len(LEVELS) - 1))]

    return "".join(map(block, curve))


def change(curve: deque[float]) -> str:
    """From the first value to the last: "+12%", "x35"; "" where it has no meaning."""
    factor = _factor(curve)
    if math.isnan(factor):
        return ""
    if factor >= 10:
        return f"x{factor:.3g}" if math.isfinite(factor) else "from 0"
    return f"{factor - 1:+.0%}"


def _factor(curve: deque[float]) -> float:
    """The last value over the first; inf after a zero, NaN where nothing can be said."""
    first, last = curve[0], curve[-1]
    if len(curve) < 2 or math.isnan(first) or math.isnan(last):
        return math.nan
    if first == 0:
        return math.inf if last else 1.0
    return last / first
