"""View: follows a growing run, and makes the frame that shows the run in a terminal."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from hookstats.cli.alerts import alert_lines
from hookstats.cli.inputs import check_chosen, choose
from hookstats.insight.comparison import format_ratio
from hookstats.records.alerts import incidents_of, worst
from hookstats.records.keys import Key
from hookstats.records.summary import SiteSummary, summarise
from hookstats.rules import Alert
from hookstats.rules.replaying import Replay
from hookstats.runs.format import TENSORS
from hookstats.runs.run import Run
from hookstats.show.focus import tensor_of
from hookstats.show.grid import Cell, grid, require_rich
from hookstats.show.terminal import CELLS, logged
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

WINDOW = 12
"""The number of recorded steps that the change and the curve of a site cover."""
RECENT = 300
"""The most steps that are read at once: in a long run the present matters more than the past."""
ALERTS = 4
"""The number of incidents shown."""
_COLUMNS = ("layer", "kind", "rms", "non-\nfinite", "dead")
LEVELS = "▁▂▃▄▅▆▇█"


class View:
    """Follows a run, and keeps the chosen layers and kinds alone."""

    def __init__(
        self,
        run: Run,
        layers: list[str] | None = None,
        kinds: list[str] | None = None,
        rules: str | None = None,
    ) -> None:
        """rules: check the steps that are read, instead of reading what the run's rules said."""
        self.run = run
        self._rules = rules
        self._layers, self._kinds = layers, kinds
        self._recorded = 0
        self._unread = 0
        self._forget()

    def _forget(self) -> None:
        self.sites: list[SiteSummary] = []
        """The sites of the step that was read last."""
        self.alerts: list[Alert] = []
        self._causes: list[Key] = []
        self._chosen: Collection[Key] | None = None
        self._step: int | None = None
        self._logged = ""
        self._passed = 0
        self._curves: dict[Key, deque[float]] = {}
        self._replay = None if self._rules is None else Replay(self.run, self._rules)

    def read(self, seconds: float = math.inf) -> bool:
        """Read new steps for about `seconds`; returns whether more are left to read.

        Raises:
            ValueError: the layers and kinds match nothing.
        """
        end = time.monotonic() + seconds
        steps = self.run.steps
        if self._step is not None and steps[-1:] < [self._step]:
            self._forget()  # training went back to a checkpoint
        new = [step for step in steps if self._step is None or step > self._step]
        passed, new = new[:-RECENT], new[-RECENT:]
        self._passed += len(passed)
        self._recorded, self._unread = len(steps), len(new)
        if self._replay is not None:
            self._replay.skip(passed[-1] if passed else -1)
            self._replay.look()
        for step in new:
            self._take(step)
            self._unread -= 1
            if time.monotonic() > end:
                break
        if self._replay is None:
            self.alerts = self.run.alerts
        else:
            if not self._unread:
                self._replay.finish()
            self.alerts = self._replay.monitor.alerts
        return self._unread > 0

    def _take(self, step: int) -> None:
        record = self.run[step]
        check_chosen(record.keys(), self._layers, self._kinds)
        chosen = set(choose(record.keys(), self._layers, self._kinds))
        self._step, self._logged = step, logged(record)
        self.sites = summarise(record, chosen)
        for site in self.sites:
            curve = self._curves.setdefault((site.name, site.kind), deque(maxlen=WINDOW))
            curve.append(site.rms)
        if self._replay is not None:
            self._replay.examine(record)
        self._chosen = chosen if self._layers or self._kinds else None

    def frame(self, console: Console, rows: int) -> Iterator[RenderableType]:
        """What to print, from top to bottom; the table has at most `rows` rows."""
        text = require_rich().text.Text
        yield text(printable(self._headline()), "bold")
        if self._step is None:
            return
        if self._logged:
            yield self._logged
        yield ""
        yield from self._table(console, rows)
        if rows < len(self.sites):
            yield f"... and {len(self.sites) - rows} more"
        yield ""
        yield from alert_lines(console, self.alerts, ALERTS, self._chosen, cut=True)

    def _headline(self) -> str:
        rank = "" if self.run.rank is None else f", rank {self.run.rank}"
        if self._step is None:
            return f"{self.run.path}{rank}: no step yet{self._age()}"
        unread = f", {self._unread} still to read" if self._unread else ""
        passed = f", the first {self._passed} not read" if self._passed else ""
        recorded = f"{self._recorded} recorded{passed}{unread}"
        return f"{self.run.path}{rank}: step {self._step}, {recorded}{self._age()}"

    def _age(self) -> str:
        if self.run.coverage is not None:
            return ", closed"
        written = [part.stat().st_mtime for part in (self.run.path / TENSORS).glob("*.parquet")]
        return f", written {time.time() - max(written):.0f} s ago" if written else ""

    def _table(self, console: Console, rows: int) -> Iterator[Text]:
        curves = console.encoding.startswith("utf")
        columns = (
            *("layer", "kind"),
            *[f"rms, last {WINDOW}"] * curves,
            *("rms", "change", "non-\nfinite", "dead"),
        )
        keys = {(site.name, site.kind) for site in self.sites}
        causes = [tensor_of(one.cause, keys) for one in worst(incidents_of(self.alerts))]
        self._causes = list(dict.fromkeys(filter(None, causes)))
        shown = sorted(self.sites, key=self._urgency)[:rows]
        cells = [self._cells(site, curves) for site in shown]
        return grid(console, columns, cells, text=2 + curves, elided=2)

    def _cells(self, site: SiteSummary, curves: bool) -> list[Cell]:
        """The row of a site."""
        curve = self._curves[site.name, site.kind]
        layer, kind, rms, nonfinite, dead = (CELLS[name](site) for name in _COLUMNS)
        curve_cell = [(draw(curve), "cyan")] * curves
        return [layer, kind, *curve_cell, rms, (format_ratio(_factor(curve)), ""), nonfinite, dead]

    def _urgency(self, site: SiteSummary) -> tuple[int, bool, float]:
        """A sort key: the causes of incidents first, the worst before others, then sites with
        non-finite values, then what changed most."""
        key, causes = (site.name, site.kind), self._causes
        factor = _factor(self._curves[key])
        moved = 0.0 if math.isnan(factor) else abs(math.log(factor)) if factor else math.inf
        rank = causes.index(key) if key in causes else len(causes)
        return rank, not site.nonfinite, -moved


def draw(curve: deque[float]) -> str:
    """The values as blocks, from zero to their maximum; a NaN is a space."""
    top = max((value for value in curve if math.isfinite(value)), default=0.0)

    def block(value: float) -> str:
        if math.isnan(value):
            return " "
        share = min(value / top, 1.0) if top else 0.0
        return LEVELS[math.ceil(share * (len(LEVELS) - 1))]

    return "".join(map(block, curve))


def _factor(curve: deque[float]) -> float:
    """The last value over the first; inf after a zero, NaN where it is undefined."""
    first, last = curve[0], curve[-1]
    if len(curve) < 2 or math.isnan(first) or math.isnan(last):
        return math.nan
    if first == 0:
        return math.inf if last else 1.0
    return last / first
