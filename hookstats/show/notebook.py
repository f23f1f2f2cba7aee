"""What notebooks show of runs, their steps, series, incidents and differences: HTML, no scripts."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hookstats.hooks.coverage import Coverage
from hookstats.insight.comparison import RunComparison
from hookstats.records.alerts import Incidents, worst
from hookstats.records.keys import label
from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.records.summary import summarise
from hookstats.rules import advice_of
from hookstats.runs.run import Run
from hookstats.runs.series import Series, SiteSeries
from hookstats.show.plot import Plots, draw_histogram
from hookstats.stats.printable import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_ROWS = 40  # of a table
_INCIDENTS = 3  # of a run
_DPI = 100
_POINTS = 80  # of a line in a table


def run_html(run: Run) -> str:
    """What the run is, its first incidents, and a heatmap of its layers' rms by step."""
    parts = [about_html(run), _incidents(run)]
    if run.steps:
        kinds = [kind for _, kind in run[run.steps[-1]]]
        kind = "output" if "output" in kinds else next(iter(kinds), None)
        if kind is not None:
            caption = f"rms of every {kind}, layers in order of execution by steps"
            parts.append(_figure(lambda: Plots(run).heatmap(kind=kind), caption))
    return _fragment(parts)


def _incidents(run: Run) -> str:
    """What went wrong, the first cause first; at most `_INCIDENTS`."""
    found = run.incidents
    lines = [f"<div>{_escaped(f'{one.severity}: {one}')}</div>" for one in found[:_INCIDENTS]]
    more = f"<div>and {len(found) - _INCIDENTS} more</div>" if len(found) > _INCIDENTS else ""
    return "".join(lines) + more


def incidents_html(incidents: Incidents) -> str:
    """A table with one row per incident, the worst first: its cause, and what usually helps."""
    head = ("", "rule", "step", "where", "what", "consequences", "what helps")
    rows = []
    for one in worst(incidents):
        cause = one.cause
        where = f"{label(cause.site)} {cause.kind}"
        said = cause.message.removeprefix(f"{cause.rule}: step {cause.step}: ")
        helps = advice_of(cause)
        many = str(len(one.consequences))
        rows.append((one.severity, cause.rule, str(cause.step), where, said, many, helps))
    if not rows:
        return _fragment([_title("Incidents", "none")])
    return _fragment([_title("Incidents", str(len(rows))), _table(head, rows, wrap=(4, 6))])


def comparison_html(found: RunComparison) -> str:
    """Where two runs differ first, and a table of the tensors that differ most."""
    both = f"{found.a} and {found.b}"
    if not found.sites:
        steps = f"{len(found.steps)} steps of {len(found.compared)} tensors"
        return _fragment([_title("Comparison", f"{both} are equal: {steps}")])
    head = ("name", "kind", "first step", "steps", "most in step", "rms A", "rms B", "values moved")
    rows = [
        (
            label(site.name),
            site.kind,
            *(str(n) for n in (site.first, site.steps, site.step)),
            *(_number(rms) for rms in site.rms),
            "" if math.isnan(site.moved) else f"{site.moved:.1%}",
        )
        for site in found.sites[:_ROWS]
    ]
    parts = [_title("Comparison", both)]
    if found.first is not None:
        step, (difference, *_) = found.first
        where = f"{label(difference.name)} {difference.kind}"
        parts.append(f"<div>first differ in step {step}, at {_escaped(where)}</div>")
    return _fragment([*parts, _table(head, rows, len(found.sites))])


def coverage_html(coverage: Coverage) -> str:
    """A table of the tensors that were not observed in every call, and why."""
    gaps = [row for row in coverage if row.error or row.missing or row.skipped or not row.forwards]
    rows = [
        (
            label(row.name),
            row.kind,
            *(str(n) for n in (row.forwards, row.observed, row.missing)),
            "; ".join(
                [
                    *(f"{why}: {n}" for why, n in row.skipped.items()),
                    *([row.error] if row.error else []),
                    *([] if row.forwards else ["never called"]),
                ]
            ),
        )
        for row in gaps
    ]
    whole = f"{coverage.steps} steps; {len(coverage) - len(gaps)} of {len(coverage)} tensors whole"
    parts = [_title("Coverage", whole)]
    if rows:
        parts.append(_table(("name", "kind", "calls", "observed", "missing", "why"), rows))
    for what, why in coverage.failures.items():
        parts.append(f"<div>{_escaped(f'{what} stopped: {why}')}</div>")
    return _fragment(parts)


def about_html(run: Run) -> str:
    """What the run is, in words."""
    steps = run.steps
    facts = {
        "model": run.header.get("model"),
        "steps": f"{len(steps)} ({steps[0]} to {steps[-1]})" if steps else "none yet",
        "ranks": ", ".join(map(str, run.ranks)),
        "started": run.created,
        "ended": run.closed or "not ended",
    }
    return _title("Run", str(run.path)) + _facts(facts)


def record_html(record: StepRecord) -> str:
    """A table with one row per site of a step."""
    head = ("name", "kind", "shape", "mean", "std", "min", "max", "non-finite", "dead channels")
    rows = [
        (
            label(site.name),
            site.kind,
            " x ".join(map(str, site.shape)),
            *(_number(x) for x in (site.mean, site.std, site.min, site.max)),
            str(site.nonfinite),
            f"{site.dead} of {site.channels}" if site.dead >= 0 else "-",
        )
        for site in summarise(record)
    ]
    of = "" if record.rank is None else f" of rank {record.rank}"
    title = _title("StepRecord", f"step {record.step}{of}, {len(record)} tensors")
    return _fragment([title, _table(head, rows)])


def series_html(series: Series) -> str:
    """A table with one row per site; a line draws its rms over the steps."""
    head = ("name", "kind", "steps", "rms", "last rms")
    sites = list(series.values())
    rows = [
        (
            label(site.name),
            site.kind,
            str(len(site)),
            _Markup(_sparkline(site.rms)),
            _number(float(site.rms[-1])),
        )
        for site in sites[:_ROWS]
    ]
    return _fragment([_title("Series", f"{len(sites)} tensors"), _table(head, rows, len(sites))])


def site_html(site: SiteSeries) -> str:
    """What a tensor was in its last step, and its histogram by step."""
    facts = {
        "tensor": f"{site.dtype} [{', '.join(map(str, site.shape))}]",
        "steps": f"{len(site)} ({site.steps[0]} to {site.steps[-1]})",
        "last": ", ".join(
            f"{name} {_number(float(getattr(site, name)[-1]))}"
            for name in ("mean", "std", "min", "max")
        ),
    }
    parts = [_title("SiteSeries", f"{label(site.name)} {site.kind}"), _facts(facts)]
    if site.bins is not None and (site.count > 0).any():
        caption = "share of the values by step, linear near zero and logarithmic beyond"
        parts.append(_figure(lambda: draw_histogram(site), caption))
    return _fragment(parts)


def _figure(draw: Callable[[], Figure], caption: str) -> str:
    """The figure as a picture, or how to get one where matplotlib is missing."""
    try:
        figure = draw()
    except ImportError as error:
        return f'<div style="opacity: 0.75">{_escaped(str(error))}</div>'
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=_DPI)
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return (
        f'<img src="data:image/png;base64,{data}" alt="{_escaped(caption)}" '
        'style="max-width: 100%; background: white; margin: 6px 0 2px">'
        f'<div style="opacity: 0.75; font-size: 12px">{_escaped(caption)}</div>'
    )


def _sparkline(values: Float64) -> str:
    """A line over the steps, on a log scale, as SVG."""
    width, height = 160, 20
    chosen = values[np.linspace(0, len(values) - 1, min(_POINTS, len(values))).astype(int)]
    low, high = _log_range(chosen)
    with np.errstate(divide="ignore", invalid="ignore"):
        y = height - 2 - np.log(chosen / low) / np.log(high / low) * (height - 4)
    x = np.linspace(2, width - 2, len(chosen))
    points = " ".join(f"{a:.0f},{b:.1f}" for a, b in zip(x, y, strict=True) if math.isfinite(b))
    return (
        f'<svg width="{width}" height="{height}" role="img" aria-label="rms over the steps, from '
        f'{_number(low)} to {_number(high)}"><polyline points="{points}" fill="none" '
        'stroke="currentColor"/></svg>'
    )


def _log_range(values: Float64) -> tuple[float, float]:
    some = values[np.isfinite(values) & (values > 0)]
    if not some.size:
        return 1.0, 10.0
    low, high = float(some.min()), float(some.max())
    return max(low, high * 1e-12), high if high > low else 2 * high


def _number(x: float) -> str:
    return f"{x:.3g}"


class _Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def _escaped(text: str) -> str:
    """`text` as HTML that shows it as it is, and what nobody could see as escapes."""
    return html.escape(printable(text, lines=True))


def _fragment(parts: Iterable[str]) -> str:
    return f'<div style="font: 13px/1.5 sans-serif; max-width: 60em">{"".join(parts)}</div>'


def _title(what: str, name: str) -> str:
    return f"<div><b>{what}</b> {_escaped(name)}</div>"


def _facts(facts: Mapping[str, str | None]) -> str:
    said = (f"{name}: {_escaped(value)}" for name, value in facts.items() if value)
    return f'<div style="opacity: 0.75">{" · ".join(said)}</div>'


def _table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    of: int | None = None,
    wrap: Collection[int] = (),
) -> str:
    """At most `_ROWS` of the rows; `of`, by default their number, counts those left out too.

    wrap: the columns whose texts may take several lines.
    """

    def cells(tag: str, row: Sequence[str]) -> str:
        texts = (text if isinstance(text, _Markup) else _escaped(text) for text in row)
        style = "text-align: left; vertical-align: top; padding: 1px 10px 1px 0; white-space: "
        styles = (style + ("normal" if k in wrap else "nowrap") for k in range(len(row)))
        styled = zip(styles, texts, strict=True)
        return (
            "<tr>" + "".join(f'<{tag} style="{s}">{text}</{tag}>' for s, text in styled) + "</tr>"
        )

    of = len(rows) if of is None else of
    more = f"<div>and {of - _ROWS} more</div>" if of > _ROWS else ""
    body = "".join(cells("td", row) for row in rows[:_ROWS])
    return (
        '<div style="overflow-x: auto"><table style="font-size: inherit">'
        f"<thead>{cells('th', head)}</thead><tbody>{body}</tbody></table></div>{more}"
    )
