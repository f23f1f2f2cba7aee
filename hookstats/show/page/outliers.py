"""outliers(): the channels of a run that differ most from the others of their layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from hookstats.records.sparse import Float64
from hookstats.show.overview import Overview
from hookstats.show.sampled import ChannelColumns, Sampled

MOST = 100
_LEAST = 4  # fewer channels have no ordinary one
_RATIO = 5.0  # a channel this far from the median of its layer is worth a line


def outliers(view: Overview, some: Sampled) -> list[dict[str, Any]]:
    """The worst channels in the steps of `some`, as JSON, the worst first.

    Each has "site", "channel", "step", where it is worst, and "ratio", its rms over the median of
    the layer's live channels in that step; or "ratio" is null and the channel has non-finite values
    from that step on, among the sampled ones, while other channels of the layer have none.
    """
    found = []
    for s, channels in enumerate(some.channels):
        if channels is not None and channels.rms.shape[1] >= _LEAST:
            found += _of_site(s, channels, some.steps)
    found.sort(key=lambda one: -np.inf if one["ratio"] is None else -abs(np.log(one["ratio"])))
    return found[:MOST]


def _of_site(s: int, channels: ChannelColumns, steps: tuple[int, ...]) -> list[dict[str, Any]]:
    """The outliers of one site, a few at most."""
    rms, bad = channels.rms, channels.nonfinite
    live = np.where((rms > 0) & np.isfinite(rms), rms, np.nan)
    usual = _medians(live)
    distance = np.abs(np.log(live / usual[:, None]))
    distance = np.where(np.isnan(distance), 0.0, distance)
    worst = distance.max(0)
    found: list[dict[str, Any]] = []
    for c in np.argsort(-worst)[:5].tolist():
        k = int(distance[:, c].argmax())
        if worst[c] > np.log(_RATIO):
            ratio = float(f"{live[k, c] / usual[k]:.3g}")
            found.append({"site": s, "channel": c, "step": steps[k], "ratio": ratio})
    alone = bad & ~bad.all(1, keepdims=True)
    firsts = [(c, int(alone[:, c].argmax())) for c in np.flatnonzero(alone.any(0)).tolist()[:5]]
    return found + [{"site": s, "channel": c, "step": steps[k], "ratio": None} for c, k in firsts]


def _medians(live: Float64) -> Float64:
    """[K]: the median of each row of [K, C], over what is no NaN; NaN where that is too little."""
    counts = np.isfinite(live).sum(1)
    ordered, every = np.sort(live, axis=1), np.arange(len(live))  # NaNs are last
    middle = (ordered[every, (counts - 1) // 2] + ordered[every, counts // 2]) / 2
    return np.where(counts >= _LEAST, middle, np.nan)
