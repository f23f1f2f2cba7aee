"""Windows: the last values of many series, before each of several steps."""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from hookstats.records.sparse import Float64, Int64


class Windows:
    """The last W values of S series before each of B steps; NaN is no value, and moves nothing."""

    def __init__(self, past: Float64, values: Float64) -> None:
        """past: [S, W], oldest first. values: [B, S], those of the steps."""
        steps, series = values.shape
        self._width = past.shape[1]
        seen = ~np.isnan(values)
        self._all = np.full((series, self._width + steps), np.nan)
        self._all[:, : self._width] = past
        # Where the values of each step go: how many values the series had before, in these steps.
        self._counts: Int64 = np.zeros((steps + 1, series), np.int64)
        np.cumsum(seen, axis=0, out=self._counts[1:])
        step, one = np.nonzero(seen)
        self._all[one, self._width + self._counts[step, one]] = values[step, one]

    def before(self, step: int) -> Float64:
        """[S, W]: the values before this step, oldest first; len(values) for those at the end."""
        counts = self._counts[step]
        out: Float64 = self._windows[np.arange(len(counts)), counts]
        return out

    def extremes(self) -> tuple[Float64, Float64]:
        """The least and the greatest value before each step, [B, S] each; NaN without any."""
        counts = self._counts[:-1]
        series = np.arange(counts.shape[1])
        windows = self._windows[:, : len(counts)]  # the one after is of the next steps
        least, most = (each.reduce(windows, 2) for each in (np.fmin, np.fmax))
        return least[series, counts], most[series, counts]

    @property
    def _windows(self) -> Float64:
        return sliding_window_view(self._all, self._width, 1)
