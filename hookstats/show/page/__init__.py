"""The report: a run as one HTML page for any browser, offline."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from string import Template

from hookstats.insight.comparison import comparisons
from hookstats.records.alerts import incidents_of, worst
from hookstats.rules import Alert, Rules
from hookstats.rules.replaying import replayed
from hookstats.runs.run import Run
from hookstats.show.focus import statistic_of, step_of
from hookstats.show.notebook import about_html
from hookstats.show.overview import Overview, overview
from hookstats.show.page.content import content, name_of
from hookstats.show.page.curves import curves
from hookstats.show.page.numbers import add_numbers, statistics_of
from hookstats.show.page.outliers import outliers
from hookstats.show.paired import paired
from hookstats.show.progress import track
from hookstats.show.sampled import sampled
from hookstats.stats.printable import printable

_SCRIPTS = (
    *("decode", "format", "colours", "range", "tree", "statistics", "heatmap", "curves"),
    *(
        "charts",
        "histogram",
        "quantiles",
        "channels",
        "panels",
        "words",
        "registry",
        "alerts",
        "link",
    ),
    *("views", "lines", "flow", "worst", "main", "page"),
)


_BARE = re.compile("^ *(//.*\n)?", re.MULTILINE)
"""What a browser does not need of a script: comments that have a line, and indentation."""

_MOST_BYTES = 2_850_000  # compressed; in base64, with the scripts, 4 MB
_LEAST_BYTES = 400_000  # for the numbers, however much there is beside them
_APART = 240  # steps

_EARLY = {"seen", "nan", "posinf", "neginf", "count", "dead", "rms"}
"""The arrays of the first picture, with that of the first incident's statistic."""


Steps = tuple[int | None, int | None]
"""The first and the last step to show; None for those of the run."""


def render(
    run: Run,
    rules: Rules | None = None,
    steps: Steps | None = None,
    other: Run | None = None,
    ranks: bool = False,
) -> str:
    """The report of a run, as the text of an HTML file.

    The file is self-contained: it loads no other file, opens from a disk, and has 4 MB at most,
    unless the model has thousands of tensors. It has the statistics of every tensor in every step;
    what does not fit is merged over neighbouring steps, and the page says over which. Up to 240
    steps that have alerts, the worst first, and their neighbours are not merged. Histograms and
    channels are those of some of the steps, these among them.

    Args:
        rules: None shows the alerts that were given while the run was recorded (`Run.alerts`);
            rules check its steps now instead.
        steps: only the steps from the first number to the second, both included; None is the
            first or the last step of the run.
        other: a run B to set beside this run A: the statistics of the tensors that both have, in
            the steps that A has, and their ratios.
        ranks: set each rank beside all of them merged, in the same way.
    Raises:
        ValueError: the run has no steps, or none of these, or rules stands for no rules; or there
            is both another run and `ranks`.
    """
    first, rest = _packed(run, rules, steps, other, ranks)
    return Template(_asset("page.html")).substitute(
        title=html.escape(printable(name_of(run))),
        style=_asset("page.css"),
        script=_BARE.sub("", "\n".join(_asset(f"{name}.js") for name in _SCRIPTS)),
        payload=first,
        rest=rest,
        fallback=about_html(run),
    )


def _packed(
    run: Run, rules: Rules | None, steps: Steps | None, other: Run | None, ranks: bool
) -> tuple[str, str]:
    """What the page of `render` shows: for its first picture, and the rest."""
    others = _others(run, other, ranks)
    chosen = _within(run, steps)
    alerts, failures = _alerts(run, rules, steps)
    theirs = [] if other is None else _alerts(other, rules, steps)[0]
    apart = _first_steps([*alerts, *theirs], chosen)
    view = overview(run, chosen, apart)
    some = sampled(run, view, apart)
    payload = content(run, view, some, (alerts, theirs), failures)
    payload.describe(
        curves=curves(run, view), outliers=outliers(view, some), statistics=statistics_of(view)
    )
    del some  # it takes as much memory as what follows
    if other is not None:
        payload.describe(differ=_first_difference(run, other, view))
    room = max(_LEAST_BYTES, _MOST_BYTES - len(payload.pack()[0]) * 3 // 4)
    arrays = add_numbers(payload, view, apart, room // 2 if others else room)
    about = []
    for n, (name, one) in enumerate(others.items()):
        pair = paired(one, view, name)
        arrays += add_numbers(payload, pair, apart, room // 2 // len(others), prefix=f"b{n}.")
        channels = [None if s in pair.uneven else x.channels for s, x in enumerate(pair.sites)]
        about.append({"name": name, "curves": curves(one, pair), "channels": channels})
    payload.describe(arrays=arrays, others=about, ofRanks=ranks and bool(others), apart=_APART)
    found = worst(incidents_of(alerts)) or worst(incidents_of(theirs))
    shown = {*_EARLY, *(statistic_of(incident.cause) for incident in found[:1])}
    return payload.pack([one["name"] for one in arrays if one["name"].split(".")[-1] in shown])


def _alerts(
    run: Run, rules: Rules | None, steps: Steps | None
) -> tuple[list[Alert], Mapping[str, str]]:
    """The alerts of a run in these steps, and the rules that failed."""
    shown = partial(track, what="checking steps")
    monitor = None if rules is None else replayed(run, rules, shown)
    found = run.alerts if monitor is None else monitor.alerts
    within = [alert for alert in found if steps is None or _is_within(alert.step, steps)]
    return within, {} if monitor is None else monitor.failures


def _first_difference(run: Run, other: Run, view: Overview) -> dict[str, int] | None:
    """The first step of the view in which the runs differ, and the site of it that was recorded
    first; None where they are equal, and where they have no step in common."""
    places = {(site.name, site.kind): s for s, site in enumerate(view.sites)}
    steps = sorted({*view.steps}.intersection(other.steps))
    for comparison in comparisons(run, other, steps):
        differing = comparison.relative.any(1).reshape(len(comparison.steps), -1)
        for step, row in zip(comparison.steps, differing, strict=True):
            keys = [comparison.keys[n] for n in row.nonzero()[0].tolist()]
            if sites := [places[key] for key in keys if key in places]:
                return {"step": step, "site": sites[0]}
    return None


def _others(run: Run, other: Run | None, ranks: bool) -> dict[str, Run]:
    """What is set beside the run, by name."""
    if other is not None and ranks:
        raise ValueError("ranks = True: expected no other run, whose ranks are merged")
    if other is not None:
        return {other.path.resolve().name: other}
    several = ranks and run.rank is None and len(run.ranks) > 1
    return {f"rank {rank}": run.of_rank(rank) for rank in run.ranks} if several else {}


def beside(run: Path) -> Path:
    """The default file of a run's report: beside the run, which only its writer changes."""
    run = run if run.name else run.resolve()  # "." has no name
    return run.with_name(f"{run.name}.html")


def _within(run: Run, steps: Steps | None) -> list[int]:
    if steps is None:
        return run.steps
    chosen = [step for step in run.steps if _is_within(step, steps)]
    if not chosen:
        there = run.steps
        has = f"{there[0]} to {there[-1]}" if there else "none yet"
        asked = ":".join("" if end is None else str(end) for end in steps)
        raise ValueError(f"steps = {asked}: expected some of the steps of {run.path}: {has}")
    return chosen


def _is_within(step: int, steps: Steps) -> bool:
    first, last = steps
    return (first is None or step >= first) and (last is None or step <= last)


def _first_steps(alerts: Sequence[Alert], steps: Sequence[int]) -> list[int]:
    """Which of the steps are set apart: those of the alerts, of the worst and earliest first."""
    told = (alert for incident in worst(incidents_of(alerts)) for alert in incident.alerts)
    ordered = (step_of(alert, steps) for alert in told)
    return sorted([*dict.fromkeys(ordered)][:_APART])


def write(
    run: Run,
    path: str | os.PathLike[str] | None = None,
    rules: Rules | None = None,
    steps: Steps | None = None,
    other: Run | None = None,
    ranks: bool = False,
) -> Path:
    """Write the report of `render` to `path`, by default `beside` the run, and return the path.

    With another run beside it, the default is RUN-OTHER.html.

    Raises:
        ValueError: as of `render`.
        OSError: `path` cannot be written.
    """
    if path is None:
        path = beside(run.path if run.url is None else Path(run.path.name))
        if other is not None:
            path = path.with_name(f"{path.stem}-{other.path.resolve().name}.html")
    path = Path(path)
    path.write_text(render(run, rules, steps, other, ranks), encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return (resources.files("hookstats.show.page") / "assets" / name).read_text("utf-8")
