"""content(): everything that the page shows of a run, quantised for a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.alerts import incidents_of, samples_of, worst
from hookstats.records.keys import Key, label, parse_kind
from hookstats.records.sparse import Float64
from hookstats.rules import Alert, advice_of
from hookstats.runs.run import Run
from hookstats.show import palette
from hookstats.show.distribution import Distributions, distributions
from hookstats.show.focus import is_size, statistic_of, tensor_of
from hookstats.show.overview import Overview
from hookstats.show.page.codes import LOG_FIRST, LOG_STEP, SHARES
from hookstats.show.page.payload import Payload
from hookstats.show.sampled import ChannelColumns, Sampled
from hookstats.stats.bins import Bins, LinearBins, LogBins

UInt8 = NDArray[np.uint8]

_BINS = 36  # the parts of a histogram's axis
_LEVELS = 24  # the shades of a histogram
_FAINTEST = 1e-4  # the share of values with the second faintest shade
_CHANNEL_LEVELS = 20
_CHANNEL_CELLS = 600_000  # at most so many channels * steps, over all sites
_LEAST_CHANNELS = 12
_MAX_CHANNELS = 256
_MAX_ALERTS = 1000

MISSING, DEAD, NONFINITE, FIRST_LEVEL = range(4)
"""The bytes of a channel image; from FIRST_LEVEL on they are levels of the rms, on a log scale."""


def content(
    run: Run,
    view: Overview,
    some: Sampled,
    alerts: tuple[Sequence[Alert], Sequence[Alert]] = ((), ()),
    failures: Mapping[str, str] | None = None,
) -> Payload:
    """The run as `view` has it, some of its steps, what was found, and the rules that failed.

    alerts: those of the run, and of a run that is set beside it.
    """
    failures = failures or {}
    payload = Payload()
    described = [_describe(run, view, s) for s in range(len(view.sites))]
    for s, about in enumerate(described):
        about.update(_add_distributions(payload, run, some, s))
        about.update(_add_channels(payload, view, some, s))
    keys = {(site.name, site.kind): s for s, site in enumerate(view.sites)}
    places = {step: i for i, step in enumerate(view.steps)}
    payload.describe(
        run=_about(run, view),
        spans=[[view.steps[first], view.steps[end - 1], end - first] for first, end in view.spans],
        samples=[[step, places[step]] for step in some.steps],
        sites=described,
        coverage=run.coverage,
        troubles=[*run.damaged.values(), *(f"{what}: {why}" for what, why in failures.items())],
        bins=_BINS,
        levels=_LEVELS,
        channelLevels=_CHANNEL_LEVELS,
        log=[LOG_STEP, LOG_FIRST],
        shares=SHARES,
        root=label(""),
        palettes={
            "sequential": palette.SEQUENTIAL,
            "diverging": palette.DIVERGING,
            "divergingDark": palette.DIVERGING_DARK,
        },
        **_found(alerts, keys, run.scalars.samples()),
    )
    return payload


def name_of(run: Run) -> str:
    """The name of a run for people: that of its directory, or of the one above where trainers call
    the directory "hookstats"."""
    path = run.path.resolve()
    return path.parent.name if path.name == "hookstats" and path.parent.name else path.name


def _found(
    of_runs: tuple[Sequence[Alert], Sequence[Alert]],
    keys: dict[Key, int],
    samples: Mapping[int, Sequence[int | str]],
) -> dict[str, Any]:
    """The incidents, the worst first, each with the places of its alerts, the cause first; those of
    the run beside come last."""
    told: list[dict[str, Any]] = []
    incidents: list[dict[str, Any]] = []
    by_run = [worst(incidents_of(alerts)) for alerts in of_runs]
    found = [incident for incidents in by_run for incident in incidents]
    for place, incident in enumerate(found):
        beside = place >= len(by_run[0])
        room = max(0, _MAX_ALERTS - len(told))
        some = incident.alerts[:room]
        if some:
            incidents.append(
                {
                    "alerts": list(range(len(told), len(told) + len(some))),
                    "inAll": len(incident.alerts),
                    "severity": incident.severity,
                    "helps": advice_of(incident.cause),
                    "samples": "" if beside else samples_of(incident.cause, samples),
                    "last": max(alert.step for alert in incident.alerts),
                }
            )
            told += [{**_alert(alert, keys), "beside": beside} for alert in some]
    in_all = sum(len(incident.alerts) for incident in found)
    return {"alerts": told, "incidents": incidents, "alertsInAll": in_all}


def _about(run: Run, view: Overview) -> dict[str, Any]:
    header = run.header
    return {
        "name": name_of(run),
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
            return f"logarithmic, {1 << bins.subdivision_bits} bins for each doubling"
    return None


def _describe(run: Run, view: Overview, s: int) -> dict[str, Any]:
    site = view.sites[s]
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
        "channels": site.channels,
        "channelDim": site.channel_dim,
        "uneven": s in view.uneven,
    }


def _alert(alert: Alert, keys: dict[Key, int]) -> dict[str, Any]:
    tensor = tensor_of(alert, keys)
    return {
        "step": alert.step,
        "since": alert.since,
        "site": None if tensor is None else keys[tensor],
        "name": alert.site,
        "kind": alert.kind,
        "channel": alert.channel,
        "rule": alert.rule,
        "statistic": statistic_of(alert),
        "isSize": is_size(alert),
        "message": alert.message,
        "severity": alert.severity,
    }


def _add_distributions(payload: Payload, run: Run, some: Sampled, s: int) -> dict[str, Any]:
    found = None
    if run.bins is not None:
        found = distributions(run.bins, some.hist(s), some.least[s], some.greatest[s], _BINS)
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


def _add_channels(payload: Payload, view: Overview, some: Sampled, s: int) -> dict[str, Any]:
    """Add a channel image [rows, steps]; neighbouring channels share a row where they must."""
    channels = some.channels[s]
    count = view.sites[s].channels
    if channels is None or count < 2 or not channels.known.any():
        return {"image": None}
    budget = _CHANNEL_CELLS // (len(view.sites) * len(some.steps))
    rows = min(count, _MAX_CHANNELS, max(_LEAST_CHANNELS, budget))
    image, levels = _image(channels, rows)
    payload.add(f"channels{s}", image)
    last = np.flatnonzero(channels.dead[np.flatnonzero(channels.known)[-1]]).tolist()
    return {"image": rows, "rms": levels, "deadLast": ranges(last)}


def _image(channels: ChannelColumns, rows: int) -> tuple[UInt8, list[float]]:
    """The image, uint8 [rows, steps], and the rms of its first and its last level."""

    def grouped(ufunc: np.ufunc, values: NDArray[Any]) -> NDArray[Any]:
        found: NDArray[Any] = ufunc.reduceat(values, starts(values.shape[1], rows), axis=1).T
        return found

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
