"""content(): everything that the page shows of a run, quantised for a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.keys import Key, label, parse_kind
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64
from hookstats.rules import Alert
from hookstats.runs.run import Run
from hookstats.show import palette
from hookstats.show.distribution import Distributions, distributions
from hookstats.show.overview import ChannelColumns, Overview
from hookstats.show.page.payload import Payload, bfloat16
from hookstats.stats import state
from hookstats.stats.bins import Bins, LinearBins, LogBins
from hookstats.stats.derived import STATISTICS, columns_of, statistic

UInt8 = NDArray[np.uint8]

_BINS = 36  # the parts of a histogram's axis
_LEVELS = 24  # the shades of a histogram
_FAINTEST = 1e-4  # the share of values with the second faintest shade
_CHANNEL_LEVELS = 20
_CHANNEL_CELLS = 450_000  # at most so many channels * columns, over all sites
_MAX_CHANNELS = 256
_MAX_ALERTS = 1000

_CHOICE = ("rms", "std", "amax", "mean", "min", "max")
"""The statistics that a page offers, in this order."""
_SHARES = {
    "zero": "share of zeros",
    "dead": "share of dead channels",
    "nonfinite": "share of non-finite values",
}

MISSING, DEAD, NONFINITE, FIRST_LEVEL = range(4)
"""The bytes of a channel image; from FIRST_LEVEL on they are levels of the rms, on a log scale."""


def content(
    run: Run,
    view: Overview,
    alerts: Sequence[Alert] = (),
    failures: Mapping[str, str] | None = None,
) -> Payload:
    """The run as `view` merges it, the alerts of the rules, and the rules that failed."""
    failures = failures or {}
    payload = Payload()
    _add_statistics(payload, view)
    described = [_describe(run, site) for site in view.sites]
    for s, about in enumerate(described):
        about.update(_add_distributions(payload, view, s))
        about.update(_add_channels(payload, view, s))
    keys = {(site.name, site.kind): s for s, site in enumerate(view.sites)}
    worst = sorted(alerts, key=lambda alert: -alert.level)
    payload.describe(
        run=_about(run, view),
        spans=[[view.steps[first], view.steps[end - 1], end - first] for first, end in view.spans],
        sites=described,
        alerts=[_alert(alert, keys) for alert in worst[:_MAX_ALERTS]],
        alertsInAll=len(alerts),
        coverage=run.coverage,
        troubles=[*run.damaged.values(), *(f"{what}: {why}" for what, why in failures.items())],
        bins=_BINS,
        levels=_LEVELS,
        channelLevels=_CHANNEL_LEVELS,
        root=label(""),
        palettes={"sequential": palette.SEQUENTIAL, "diverging": palette.DIVERGING},
    )
    return payload


def _about(run: Run, view: Overview) -> dict[str, Any]:
    header = run.header
    return {
        "name": run.path.resolve().name,
        "model": header.get("model"),
        "hookstats": run.version,
        "torch": header.get("torch"),
        "created": run.created,
        "closed": run.closed,
        "kinds": header.get("kinds", []),
        "every": header.get("every"),
        "channelDim": header.get("channel_dim", "auto"),
        "bins": _say_bins(run.bins),
        "channelBins": _say_bins(run.channel_bins),
        "modules": len(header.get("modules", {})),
        "parameters": len(header.get("parameters", {})),
        "ranks": run.ranks,
        "rank": view.rank,
        "steps": len(view.steps),
        "thinned": run.thinned,
    }


def _say_bins(bins: Bins | None) -> str | None:
    match bins:
        case LinearBins():
            return f"{bins.bins} equal bins from {bins.lo:g} to {bins.hi:g}"
        case LogBins():
            return (
                f"{1 << bins.subdivision_bits} bins per octave "
                f"from 2^{bins.min_exponent} to 2^{bins.max_exponent + 1}"
            )
    return None


def _describe(run: Run, site: SiteInfo) -> dict[str, Any]:
    modules = run.header.get("modules", {})
    kind = parse_kind(site.kind)
    owner = site.name.rpartition(".")[0] if kind.plain.startswith("param") else site.name
    return {
        "name": site.name,
        "kind": site.kind,
        "plain": kind.plain,
        "leaf": kind.path or "",
        "phase": kind.phase,
        "module": modules.get(owner),
        "shape": list(site.shape),
        "dtype": site.dtype,
        "channels": site.merged or site.channels,
        "channelDim": site.channel_dim,
    }


def _alert(alert: Alert, keys: dict[Key, int]) -> dict[str, Any]:
    return {
        "step": alert.step,
        "site": keys.get((alert.site, alert.kind)),
        "name": alert.site,
        "kind": alert.kind,
        "channel": alert.channel,
        "rule": alert.rule,
        "message": alert.message,
        "severity": alert.severity,
    }


def _add_statistics(payload: Payload, view: Overview) -> None:
    """Add arrays [S, T]: statistics and counts as bfloat16, dead channels as uint16
    (65535: unknown).

    The description gets "statistics", what one can choose to see: id, label, scale ("log",
    "signed", or "share" in 0..1); and "floats", the names of the arrays of bfloat16.
    """
    columns = columns_of(view.moments.transpose(1, 0, 2), view.tallies.transpose(1, 0, 2))
    count = columns("count")
    chosen = list(_CHOICE)
    if state.is_higher(view.moments):
        chosen += ["skewness", "kurtosis"]
    floats = {name: np.where(count > 0, statistic(name, columns), np.nan) for name in chosen} | {
        name: columns(name) for name in ("nan", "posinf", "neginf", "count")
    }
    with np.errstate(invalid="ignore"):
        floats["zero"] = columns("zero") / count
    for name, values in floats.items():
        payload.add(name, bfloat16(values))
    payload.add("seen", (view.observed.T > 0).astype(np.uint8))
    died = np.zeros(count.shape, np.uint16)
    for s, channels in enumerate(view.channels):
        if channels is not None:
            died[s] = np.where(channels.known, np.minimum(channels.dead.sum(1), 0xFFFE), 0xFFFF)
    payload.add("dead", died)
    offered: list[tuple[str, str, str]]
    offered = [(name, STATISTICS[name].label, STATISTICS[name].scale) for name in chosen]
    offered += [(name, label, "share") for name, label in _SHARES.items()]
    payload.describe(
        floats=list(floats),
        statistics=[{"id": id, "label": label, "scale": scale} for id, label, scale in offered],
    )


def _add_distributions(payload: Payload, view: Overview, s: int) -> dict[str, Any]:
    if view.bins is None:
        return {"axis": None}
    columns = []
    for hist in view.hist:
        row = view.hist_rows[s]
        span = slice(*hist.offsets[row : row + 2]) if row < hist.rows else slice(0)
        columns.append((hist.slots[span], hist.counts[span]))
    least, greatest = view.moments[:, s, state.MIN], view.moments[:, s, state.MAX]
    found = distributions(view.bins, columns, least, greatest, _BINS)
    if found is None:
        return {"axis": None}
    payload.add(f"hist{s}", _shades(found))
    payload.add(f"quantiles{s}", _positions(found))
    return {"axis": [found.axis.scale, found.axis.lo, found.axis.hi]}


def _shades(found: Distributions) -> UInt8:
    """uint8 [bins, T]: 0 for none, else 1.._LEVELS by the logarithm of the share."""
    shares = np.nan_to_num(found.shares)
    with np.errstate(divide="ignore"):
        level = 1 - np.log(shares / _FAINTEST) / np.log(_FAINTEST) * (_LEVELS - 1)
    # A share of one in a billion is a rounding error of interpolation.
    return np.where(shares > 1e-9, np.clip(level.round(), 1, _LEVELS), 0).astype(np.uint8)


def _positions(found: Distributions) -> UInt8:
    """uint8 [quantiles, T]: 0 for none, else 1..255 from lo to hi; then differences by column."""
    position = 1 + np.nan_to_num(found.axis.position(found.quantiles)) * 254
    codes = np.where(np.isnan(found.quantiles), 0, position.round()).astype(np.uint8)
    return np.diff(codes, axis=1, prepend=np.uint8(0))


def _add_channels(payload: Payload, view: Overview, s: int) -> dict[str, Any]:
    """Add a channel image [rows, columns]; neighbours share a row or a column where they must."""
    channels = view.channels[s]
    if channels is None:
        return {"image": None, "uneven": True}
    count, budget = channels.rms.shape[1], _CHANNEL_CELLS // len(view.sites)
    if count < 2:
        return {"image": None}
    rows = min(count, _MAX_CHANNELS, max(32, budget // len(view.spans)))
    columns = min(len(view.spans), max(16, budget // rows))
    image, levels = _image(channels, rows, columns)
    payload.add(f"channels{s}", image)
    known = np.flatnonzero(channels.known)
    last = np.flatnonzero(channels.dead[known[-1]]).tolist() if len(known) else []
    return {"image": [rows, columns], "rms": levels, "deadLast": ranges(last)}


def _image(channels: ChannelColumns, rows: int, columns: int) -> tuple[UInt8, list[float]]:
    """The image, uint8 [rows, columns], and the rms of its first and its last level."""

    def grouped(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        over_time = ufunc.reduceat(values, starts(values.shape[0], columns), axis=0)
        grouped: NDArray[Any] = ufunc.reduceat(over_time, starts(values.shape[1], rows), axis=1).T
        return grouped

    rms = grouped(np.fmax, channels.rms)  # the greatest, so that nothing is hidden
    levels = _level_bounds(rms)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.log(rms / levels[0]) / np.log(levels[1] / levels[0]) * (_CHANNEL_LEVELS - 1)
    level = np.nan_to_num(np.clip(level, 0, _CHANNEL_LEVELS - 1)).round()
    image = FIRST_LEVEL + level
    image[np.isnan(rms)] = MISSING
    image[grouped(np.logical_and, channels.dead)] = DEAD
    image[grouped(np.logical_or, channels.nonfinite)] = NONFINITE
    return image.astype(np.uint8), levels


def _level_bounds(rms: Float64) -> list[float]:
    """The rms of the first and the last colour, at most six decades apart."""
    values = rms[np.isfinite(rms) & (rms > 0)]
    if not len(values):
        return [1.0, 10.0]
    low, high = float(np.quantile(values, 0.02)), float(values.max())
    high = min(high, float(np.median(values)) * 1e4)
    low = max(low, high / 1e6)
    return [low, max(high, low * 2)]


def starts(count: int, groups: int) -> NDArray[np.int64]:
    """int64 [groups]: the first index of each of `groups` nearly equal groups of `count` things."""
    first: NDArray[np.int64] = np.arange(groups) * count // groups
    return first


def ranges(numbers: list[int]) -> str:
    """Ascending numbers in words, such as "0-23, 30"."""
    spans = []
    for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        spans.append(f"{members[0]}\u2013{members[-1]}" if len(members) > 1 else f"{members[0]}")
    more = f", and {len(spans) - 20} more ranges" if len(spans) > 20 else ""
    return ", ".join(spans[:20]) + more
