"""The report: a run as one HTML page for any browser, offline."""

from __future__ import annotations

import html
import os
from importlib import resources
from pathlib import Path
from string import Template

from hookstats.records.norms import gradient_norm
from hookstats.records.record import StepRecord
from hookstats.rules import Monitor, Rules, Setup
from hookstats.runs.run import Run
from hookstats.show.notebook import about_html
from hookstats.show.overview import overview
from hookstats.show.page.content import content
from hookstats.show.page.curves import curves
from hookstats.stats.printable import printable

_SCRIPTS = (
    *("decode", "format", "colours", "statistics", "heatmap", "curves", "charts", "panels"),
    "main",
)


def render(run: Run, rules: Rules | None = None) -> str:
    """The report of a run, as the text of an HTML file.

    The file is self-contained: it loads no other file, and opens from a disk. A long run is shown
    in at most 240 columns, each of which merges neighbouring steps, and the page says so. Steps
    that have alerts get columns of their own, up to as many again. Every step is read once.

    rules: None shows the alerts that were given while the run was recorded (`Run.alerts`); rules
        check its steps now instead.

    Raises:
        ValueError: the run has no steps, or rules stands for no rules.
    """
    monitor = None if rules is None else Monitor(rules, Setup.from_header(run.header))
    given = {alert.step for alert in run.alerts} if monitor is None else set()
    norms: dict[int, float] = {}

    def examine(record: StepRecord) -> bool:
        """Whether the step has alerts."""
        norm = gradient_norm(record)
        if norm is not None:
            norms[record.step] = norm
        return record.step in given if monitor is None else bool(monitor.examine(record))

    view = overview(run, each=examine)
    alerts = run.alerts if monitor is None else monitor.alerts
    payload = content(run, view, alerts, None if monitor is None else monitor.failures)
    payload.describe(curves=curves(run, view, norms))
    return Template(_asset("page.html")).substitute(
        title=html.escape(printable(run.path.resolve().name)),
        style=_asset("page.css"),
        script="\n".join(_asset(f"{name}.js") for name in _SCRIPTS),
        payload=payload.pack(),
        fallback=about_html(run),
    )


def beside(run: Path) -> Path:
    """The default file of a run's report: beside the run, which only its writer changes."""
    run = run if run.name else run.resolve()  # "." has no name
    return run.with_name(f"{run.name}.html")


def write(run: Run, path: str | os.PathLike[str] | None = None, rules: Rules | None = None) -> Path:
    """Write the report of `render` to `path`, by default `beside` the run, and return the path.

    Raises:
        ValueError: as of `render`.
        OSError: `path` cannot be written.
    """
    path = beside(run.path) if path is None else Path(path)
    path.write_text(render(run, rules), encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return (resources.files("hookstats.show.page") / "assets" / name).read_text("utf-8")
