"""What notebooks show of a run, a step, some sites or one: small pieces of HTML, no script."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.record import StepRecord
from hookstats.records.sparse import Float64
from hookstats.records.summary import summarise
from hookstats.runs.run import Run
from hookstats.runs.series import Series, SiteSeries
from hookstats.show.distribution import distributions
from hookstats.show.overview import execution_order
from hookstats.show.palette import NONE, NONFINITE, SEQUENTIAL, rgb, shades
from hookstats.show.png import png

_STEPS = 160  # of a run in its picture
_COLUMNS = 160  # of a site's histogram
_ROWS = 40  # of a table
_SHADES = 200

_MISSING, _NONE, _NONFINITE, _FIRST = range(4)
_COLOURS = np.vstack(
    (
        [[0, 0, 0, 0]],
        np.hstack((rgb((NONE, NONFINITE)), [[255], [255]])),
        np.hstack((shades(SEQUENTIAL, _SHADES), np.full((_SHADES, 1), 255))),
    )
).astype(np.uint8)


def run_html(run: Run) -> str:
    """What the run is, and its layers' rms over its steps."""
    parts = [about_html(run)]
    if run.steps:
        parts.append(_heatmap(run.series()))
    return _fragment(parts)


def about_html(run: Run) -> str:
    """What the run is, in words."""
    steps = run.steps
    facts = {
        "model": run.header.get("model"),
        "steps": f"{len(steps)} ({steps[0]} to {steps[-1]})" if steps else "none yet",
        "ranks": ", ".join(map(str, run.ranks)),
        "began": run.created,
        "ended": run.closed or "not ended",
    }
    return _title("Run", str(run.path)) + _facts(facts)


def record_html(record: StepRecord) -> str:
    """A table of the sites of a step."""
    head = ("name", "kind", "shape", "mean", "std", "min", "max", "non-finite", "dead channels")
    rows = [
        (
            site.name or "(root)",
            site.kind,
            " x ".join(map(str, site.shape)),
            *(_number(x) for x in (site.mean, site.std, site.min, site.max)),
            str(site.nonfinite),
            f"{site.dead} of {site.channels}",
        )
        for site in summarise(record)
    ]
    title = _title("StepRecord", f"step {record.step} of rank {record.rank}, {len(record)} tensors")
    return _fragment([title, _table(head, rows)])


def series_html(series: Series) -> str:
    """A table of sites, each with its rms over the steps as a line."""
    head = ("name", "kind", "steps", "rms", "last rms")
    sites = list(series.values())
    rows = [
        (
            site.name or "(root)",
            site.kind,
            str(len(site)),
            _Markup(_sparkline(site.rms)),
            _number(float(site.rms[-1])),
        )
        for site in sites[:_ROWS]
    ]
    return _fragment([_title("Series", f"{len(sites)} tensors"), _table(head, rows, len(sites))])


def site_html(site: SiteSeries) -> str:
    """A tensor's histogram over its steps, and what it was last."""
    facts = {
        "tensor": f"{site.dtype} [{', '.join(map(str, site.shape))}]",
        "steps": f"{len(site)} ({site.steps[0]} to {site.steps[-1]})",
        "last": ", ".join(
            f"{name} {_number(float(getattr(site, name)[-1]))}"
            for name in ("mean", "std", "min", "max")
        ),
    }
    parts = [_title("SiteSeries", f"{site.name or '(root)'} {site.kind}"), _facts(facts)]
    return _fragment([*parts, _histogram(site)])


def _heatmap(series: Series) -> str:
    """The rms of the outputs, or else of the first kind: a row a site, a column a step."""
    keys = list(series)
    kind = "output" if any(kind == "output" for _, kind in keys) else keys[0][1]
    names = [keys[i][0] for i in execution_order(keys) if keys[i][1] == kind]
    steps = np.unique(np.concatenate([series[name, kind].steps for name in names]))
    chosen = np.linspace(0, len(steps) - 1, min(_STEPS, len(steps))).astype(int)
    rms = np.full((len(names), len(steps)), np.nan)
    bad = np.zeros(rms.shape, bool)
    for row, name in enumerate(names):
        site = series[name, kind]
        columns = np.searchsorted(steps, site.steps)
        rms[row, columns] = site.rms
        bad[row, columns] = site.nan + site.posinf + site.neginf > 0
    rms, bad = rms[:, chosen], bad[:, chosen]
    low, high = _log_range(rms)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log(rms / low) / np.log(high / low) * (_SHADES - 1)
    codes = _FIRST + np.clip(np.nan_to_num(level), 0, _SHADES - 1).round()
    codes[rms == 0], codes[np.isnan(rms)], codes[bad] = _NONE, _MISSING, _NONFINITE
    sample = f", {len(chosen)} of {len(steps)}" if len(chosen) < len(steps) else ""
    return _figure(
        png(codes.astype(np.uint8), _COLOURS),
        min(max(4 * len(names), 60), 400),
        f"rms of {kind}: {len(names)} layers from {names[0] or '(root)'} at the top to "
        f"{names[-1] or '(root)'}, steps {steps[0]} to {steps[-1]}{sample}; "
        f"dark {_number(low)} to bright {_number(high)} on a log scale, grey zero, red not finite",
    )


def _histogram(site: SiteSeries) -> str:
    """Of evenly chosen steps."""
    if site.bins is None or site.hist is None:
        return ""
    chosen = np.linspace(0, len(site) - 1, min(_COLUMNS, len(site))).astype(int)
    columns = [(np.flatnonzero(h).astype(np.int32), h[h > 0]) for h in site.hist[chosen]]
    found = distributions(site.bins, columns, site.min[chosen], site.max[chosen], 48)
    if found is None:
        return ""
    with np.errstate(divide="ignore"):
        level = (1 + np.log10(found.shares) / 4) * (_SHADES - 1)
    codes = _FIRST + np.clip(np.nan_to_num(level, neginf=0), 0, _SHADES - 1).round()
    codes[~(found.shares > 1e-9)] = _MISSING
    ends = found.axis.values(2)
    return _figure(
        png(codes[::-1].astype(np.uint8), _COLOURS),
        160,
        f"histogram over the steps, from {_number(ends[0])} at the bottom to {_number(ends[1])}, "
        "linear near zero and logarithmic beyond; dark 0.01 % to bright 100 % of the values",
    )


def _sparkline(values: Float64) -> str:
    """A line over the steps, on a log scale, as SVG."""
    width, height, most = 160, 20, 80
    chosen = values[np.linspace(0, len(values) - 1, min(most, len(values))).astype(int)]
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


def _log_range(values: NDArray[Any]) -> tuple[float, float]:
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


def _fragment(parts: Iterable[str]) -> str:
    return f'<div style="font: 13px/1.5 sans-serif; max-width: 60em">{"".join(parts)}</div>'


def _title(what: str, name: str) -> str:
    return f"<div><b>{what}</b> {html.escape(name)}</div>"


def _facts(facts: Mapping[str, str | None]) -> str:
    said = (f"{name}: {html.escape(value)}" for name, value in facts.items() if value)
    return f'<div style="opacity: 0.75">{" · ".join(said)}</div>'


def _figure(source: str, height: int, caption: str) -> str:
    return (
        f'<img src="{source}" alt="{html.escape(caption)}" style="width: 100%; height: {height}px; '
        'image-rendering: pixelated; margin: 6px 0 2px">'
        f'<div style="opacity: 0.75; font-size: 12px">{html.escape(caption)}</div>'
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], of: int | None = None) -> str:
    def cells(tag: str, row: Sequence[str]) -> str:
        texts = (text if isinstance(text, _Markup) else html.escape(text) for text in row)
        style = 'style="text-align: left; padding: 1px 10px 1px 0; white-space: nowrap"'
        return "<tr>" + "".join(f"<{tag} {style}>{text}</{tag}>" for text in texts) + "</tr>"

    of = len(rows) if of is None else of
    more = f"<div>and {of - _ROWS} more</div>" if of > _ROWS else ""
    body = "".join(cells("td", row) for row in rows[:_ROWS])
    return (
        '<div style="overflow-x: auto"><table style="font-size: inherit">'
        f"<thead>{cells('th', head)}</thead><tbody>{body}</tbody></table></div>{more}"
    )
