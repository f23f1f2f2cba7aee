"""per_site(): the channels of every site of a record merged into one row per site."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.state import COUNT, IDENTITY, MEAN, MOMENT_COLUMNS


def over_site(ufunc: np.ufunc, values: NDArray[Any], offsets: Int64, empty: Any) -> NDArray[Any]:
    """`ufunc` over each site's rows of ``values`` [R, ...], ``empty`` where it has none.

    offsets: int64 [S + 1], site s owns rows ``offsets[s]:offsets[s + 1]``. Returns [S, ...].
    """
    some = offsets[1:] > offsets[:-1]
    if len(some) and some.all():
        return ufunc.reduceat(values, offsets[:-1], dtype=values.dtype)
    out = np.full((len(some), *values.shape[1:]), empty, values.dtype)
    if some.any():
        out[some] = ufunc.reduceat(values, offsets[:-1][some])
    return out


def per_site(moments: Float64, tallies: Int64, offsets: Int64) -> tuple[Float64, Int64]:
    """Merge the rows of each site: float64 [R, 5] -> [S, 5], int64 [R, 5] -> [S, 5].

    The columns are those of `stats.state`; a site without rows, or without finite values, gets the
    moments of no values. This is `stats.state.combine` around the largest of the rows' means: if
    all means are equal, the result is that mean to the last bit.
    """
    count, mean = tallies[:, COUNT].astype(np.float64), moments[:, MEAN]
    total = over_site(np.add, tallies, offsets, 0)
    rows = np.diff(offsets)
    none = np.flatnonzero(count == 0)
    out = np.empty((len(rows), len(MOMENT_COLUMNS)))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # 0 / 0; infinite moments
        if len(none):
            mean = mean.copy()
            mean[none] = -np.inf
        shift = over_site(np.maximum, mean, offsets, -np.inf)
        away = mean - np.repeat(shift, rows)
        away[none] = 0.0
        offset = over_site(np.add, count * away, offsets, 0.0) / total[:, COUNT]
        away -= np.repeat(offset, rows)
        away[none] = 0.0
        for i, column in enumerate(MOMENT_COLUMNS):
            values = moments[:, i]
            if column.merge == "mean":
                out[:, i] = shift + offset
                continue
            if column.merge == "central":
                values = values + count * (away * away)
            out[:, i] = over_site(_MERGED[column.merge], values, offsets, column.identity)
    out[total[:, COUNT] == 0] = IDENTITY
    return out, total


_MERGED = {"central": np.add, "sum": np.add, "min": np.minimum, "max": np.maximum}
