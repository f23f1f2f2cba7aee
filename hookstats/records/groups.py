"""per_site(): the channels of every site of a record merged into one row a site."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.sparse import Float64, Int64
from hookstats.stats.state import COUNT, IDENTITY, L1, M2, MAX, MEAN, MIN, MOMENTS


def over_site(ufunc: np.ufunc, values: NDArray[Any], offsets: Int64, empty: Any) -> NDArray[Any]:
    """`ufunc` over each site's rows of ``values`` [R, ...], ``empty`` where it has none.

    offsets: int64 [S + 1], site s owns rows ``offsets[s]:offsets[s + 1]``. Returns [S, ...].
    """
    some = np.diff(offsets) > 0
    out = np.full((len(some), *values.shape[1:]), empty, values.dtype)
    if some.any():
        out[some] = ufunc.reduceat(values, offsets[:-1][some])
    return out


def per_site(moments: Float64, tallies: Int64, offsets: Int64) -> tuple[Float64, Int64]:
    """Merge the rows of each site: float64 [R, 5], int64 [R, 5] -> [S, 5], [S, 5].

    The columns are `state.MOMENTS` and `state.TALLIES`; a site without rows, or without finite
    values, gets the moments of no values. Chan's merge of all rows at once, around the largest of
    their means: where all are equal the result is that mean to the last bit.
    """
    count, mean = tallies[:, COUNT], moments[:, MEAN]
    total = over_site(np.add, tallies, offsets, 0)
    rows = np.diff(offsets)
    out = np.empty((len(rows), len(MOMENTS)))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # 0 / 0; infinite moments
        shift = over_site(np.maximum, np.where(count > 0, mean, -np.inf), offsets, -np.inf)
        away = np.where(count > 0, mean - np.repeat(shift, rows), 0.0)
        offset = over_site(np.add, count * away, offsets, 0.0) / total[:, COUNT]
        between = np.where(count > 0, count * np.square(away - np.repeat(offset, rows)), 0.0)
        out[:, MEAN] = shift + offset
        out[:, M2] = over_site(np.add, moments[:, M2] + between, offsets, 0.0)
        out[:, L1] = over_site(np.add, moments[:, L1], offsets, 0.0)
    out[:, MIN] = over_site(np.minimum, moments[:, MIN], offsets, np.inf)
    out[:, MAX] = over_site(np.maximum, moments[:, MAX], offsets, -np.inf)
    out[total[:, COUNT] == 0] = IDENTITY
    return out, total
