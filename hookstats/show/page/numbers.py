"""add_numbers(): the statistics of all sites and steps, as exact as the size of a page allows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.show.overview import NEAR, Overview
from hookstats.show.page.codes import bfloat16, magnitudes, shares, width_of
from hookstats.show.page.payload import Payload, compress, planes
from hookstats.stats.derived import STATISTICS, columns_of, statistic

_ORDER = (
    *(("seen", "count"), ("nan", "count"), ("posinf", "count"), ("neginf", "count")),
    *(("count", "count"), ("rms", "log"), ("amax", "log"), ("dead", "known"), ("zero", "share")),
    *(("mean", "float"), ("std", "log"), ("min", "float"), ("max", "float")),
)
"""The arrays of a page and how they are stored; the first ones have the narrowest columns."""
_RESERVED = 0.03  # the share of the room that is kept for each array that follows

_CHOICE = ("rms", "std", "amax", "mean", "min", "max")
"""The statistics that a page offers, in this order."""
_SHARES = {
    "zero": "share of zeros",
    "dead": "share of dead channels",
    "nonfinite": "share of non-finite values",
}

_SAMPLE = 8  # every so many sites say how many bytes all will need
_AT_ONCE = 64  # sites
_UNSURE = 1.25  # times too many bytes, which a sample may say of what fits


def add_numbers(
    payload: Payload, view: Overview, apart: Collection[int], room: int, prefix: str = ""
) -> list[dict[str, Any]]:
    """Add arrays [S, columns] to a payload, which have up to `room` compressed bytes together.

    Arrays that do not fit have wider columns, which merge steps; steps `apart` and their neighbours
    are not merged. Names of arrays begin with `prefix`.

    Returns, as JSON: of each array its name, code, bytes per number and "starts", the first column
    of the overview that each of its columns merges, or null where columns are the same.
    """
    widths = _Widths(view, apart)
    described, left = [], float(room)
    for place, (name, code) in enumerate(_ORDER):
        later = len(_ORDER) - place - 1
        stored = _fitting(widths, name, code, left - room * _RESERVED * later)
        left -= len(stored.data)
        payload.add_block(prefix + name, stored.data)
        described.append(
            {
                "name": prefix + name,
                "code": code,
                "width": stored.width,
                "starts": None if stored.level == 0 else widths.starts(stored.level),
            }
        )
    return described


def statistics_of(view: Overview) -> list[dict[str, str]]:
    """The statistics that one can choose to see, as JSON: id, label, scale ("log", "signed", or
    "share" in 0..1)."""
    offered: list[tuple[str, str, str]] = [
        (name, STATISTICS[name].label, STATISTICS[name].scale) for name in _CHOICE
    ]
    offered += [(name, label, "share") for name, label in _SHARES.items()]
    return [{"id": id, "label": label, "scale": scale} for id, label, scale in offered]


class _Stored(NamedTuple):
    level: int
    width: int
    data: bytes


class _Widths:
    """An overview with columns of several widths: those of level k merge 2**k neighbours."""

    def __init__(self, view: Overview, apart: Collection[int]) -> None:
        steps, chosen = np.array(view.steps), sorted(apart)
        firsts = [first for first, _ in view.spans]
        places = np.searchsorted(steps, chosen)
        columns = np.searchsorted(firsts, places, side="right") - 1
        self._alone = {int(t) + k for t in columns for k in range(-NEAR, NEAR + 1)}
        self._views = {0: view}

    def starts(self, level: int) -> list[int]:
        """The columns of level 0 where those of a level begin."""
        count = len(self._views[0].spans)
        alone = {t for t in self._alone if 0 <= t < count}
        regular = range(0, count, 1 << level)
        return sorted({*regular, *alone, *(t + 1 for t in alone if t + 1 < count)})

    @property
    def last(self) -> int:
        """The level that has no narrower columns than it must."""
        return max(0, len(self._views[0].spans) - 1).bit_length()

    def view(self, level: int) -> Overview:
        """The overview with the columns of a level."""
        if level not in self._views:
            # Of wider columns the last, as arrays ask for ever wider ones.
            self._views = {0: self._views[0]}
            self._views[level] = self._views[0].merged(self.starts(level))
        return self._views[level]


def _fitting(widths: _Widths, name: str, code: str, room: float) -> _Stored:
    """An array with the narrowest columns that fit into `room` bytes."""
    level = 0
    while True:
        view = widths.view(level)
        some = _codes(view, name, code, slice(None, None, _SAMPLE))
        size = _SAMPLE * len(compress(planes(some, _width(some, code))))
        if size <= _UNSURE * room or level == widths.last or len(some) < _SAMPLE:
            # Some sites at a time, as what comes between takes many times the memory of codes.
            firsts = range(0, len(view.sites), _AT_ONCE)
            codes = np.concatenate(
                [_codes(view, name, code, slice(s, s + _AT_ONCE)) for s in firsts]
            )
            width = _width(codes, code)
            stored = _Stored(level, width, compress(planes(codes, width)))
            size = len(stored.data)
            if size <= room or level == widths.last:
                return stored
        # Half the columns take more than half the bytes, so no level that fits is left out.
        wider = int(np.log2(size / room)) if room > 0 else widths.last
        level = min(widths.last, level + max(1, wider))


def _width(codes: NDArray[Any], code: str) -> int:
    """The bytes of each of these codes."""
    return width_of(codes) if code in ("count", "known") else 2


def _codes(view: Overview, name: str, code: str, sites: slice) -> NDArray[Any]:
    """The codes of a statistic of some sites, [S, T]."""
    if name == "seen":
        return np.asarray(view.observed.T[sites] > 0, np.uint8)
    if name == "dead":
        return np.asarray(view.dead.T[sites] + 1)
    moments, tallies = view.moments[:, sites], view.tallies[:, sites]
    columns = columns_of(moments.transpose(1, 0, 2), tallies.transpose(1, 0, 2))
    if code == "count":
        return np.asarray(columns(name))
    count = columns("count")
    if code == "share":
        with np.errstate(invalid="ignore"):
            return np.asarray(shares(columns(name) / count))
    values: Any = np.where(count > 0, statistic(name, columns), np.nan)
    return magnitudes(values) if code == "log" else bfloat16(values)
