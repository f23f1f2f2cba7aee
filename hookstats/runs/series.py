"""Series and SiteSeries: what was recorded of some sites, as arrays over the steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.display import view_of
from hookstats.records.keys import Key
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.columns import state_column
from hookstats.runs.format import CHANNELS_COLUMN
from hookstats.runs.parts import Parts
from hookstats.runs.selections import Merged, OfRank, Selection
from hookstats.runs.whole import Whole
from hookstats.stats.bins import Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import Statistics, dead, statistic
from hookstats.stats.printable import printable

_NAMED = 3  # sites in the representation of a series


def span(steps: Sequence[int]) -> str:
    """Ascending steps in words: "84 steps, 0 to 83", "step 7"."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if steps else "no steps"


class ArrayStatistics(Statistics[Int64, Float64]):
    """Statistics as NumPy arrays of one shape."""

    def _count_of(self, name: str) -> Int64:
        return self._value_of(name)  # type: ignore[return-value]  # which dtype, the name says

    def _value_of(self, name: str) -> Float64:
        return statistic(name, self._state)

    @property
    def dead(self) -> NDArray[np.bool_]:
        """bool: whether there are finite values and all of them are zero; see `insight.dead`."""
        return dead(self._state)

    def _state(self, name: str) -> NDArray[Any]:
        """A column of the state."""
        return state_column(name, self._column)

    @abstractmethod
    def _column(self, name: str) -> NDArray[Any]:
        """One of `columns.COLUMNS`."""


class SiteSeries(ArrayStatistics):
    """One site over the S steps that observed it, with statistics [S] of the whole tensor.

    Arrays are shared, not copied: read them, never write to them.
    """

    def __init__(self, selection: Selection, key: Key, rows: slice) -> None:
        self.name = key[0]
        """The qualified name of the module or parameter."""
        self.kind = key[1]
        """Which tensor, with the path of the leaf: "output", "output[1]", "param_grad"."""
        self._selection = selection
        self._rows = rows

    def __len__(self) -> int:
        """The number of steps."""
        return len(self.steps)

    def __repr__(self) -> str:
        return f"SiteSeries({self.name!r}, {self.kind!r}, {span(self.steps.tolist())})"

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @property
    def bins(self) -> Bins | None:
        """The bins of `hist`; None where there were none."""
        return self._selection.parts.bins

    @property
    def channel_bins(self) -> Bins | None:
        """The bins of the channels' histograms, in `stats`; None where there were none."""
        return self._selection.parts.channel_bins

    @property
    def channel_dim(self) -> int | None:
        """The dimension of the channels in the last step; None if the tensor is one channel, or the
        step has the whole tensor alone."""
        return self._info.channel_dim

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor seen last."""
        return self._info.shape

    @property
    def dtype(self) -> str:
        """The dtype of the tensor seen last, such as "float32"."""
        return self._info.dtype

    @property
    def steps(self) -> Int64:
        """int64 [S]: the steps that observed the site, ascending."""
        steps: Int64 = self._selection.steps[self._rows]
        return steps

    @property
    def observed(self) -> Int64:
        """int64 [S]: calls merged into each step."""
        observed: Int64 = self._selection.numbers["observed"][self._rows]
        return observed

    def stats(self, i: int) -> ChannelStats:
        """The statistics of the channels in step ``steps[i]``, with histograms."""
        return self._selection.record(int(self.steps[i]))[self.name, self.kind]

    @property
    def channels(self) -> ChannelSeries:
        """The same statistics channel by channel, [S, C]; where `watch` had detail="tensor", of the
        steps alone that have their channels.

        Raises:
            ValueError: (when an array is asked for) steps have different numbers of channels.
        """
        return ChannelSeries(self)

    @property
    def hist(self) -> Int64 | None:
        """int64 [S, slots]: the tensor's histogram, slots as in `bins`; None without `bins`."""
        if self.bins is None:
            return None
        names = ("hist_slots", "hist_counts")
        (slots, offsets), (counts, _) = self._selection.lists(*names)
        return SparseCounts(offsets, slots, counts).dense(self._rows, self.bins.slots)

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._numbers(name)[self._rows]
        return column

    def _numbers(self, name: str) -> NDArray[Any]:
        """A column of whole tensors, over all rows of the selection."""
        return self._selection.numbers[f"tensor_{name}"]

    def _channel_column(self, name: str) -> NDArray[Any]:
        self._numbers(name)  # raises where it is not stored
        (values, offsets), (_, counted) = self._selection.lists(name, "count")
        if not np.array_equal(offsets, counted):
            raise ValueError(
                f"{printable(str(self._selection.parts.run))}: damaged: columns 'count' and "
                f"{name!r} have lists of different lengths"
            )
        bounds = offsets[self._rows.start : self._rows.stop + 1]
        lengths = np.diff(bounds)
        whole = self._merged(lengths)
        channels = set(lengths[~whole].tolist())
        if len(channels) > 1:
            raise ValueError(
                f"{self.kind} of {self.name!r}: {min(channels)} to {max(channels)} channels, "
                "expected the same number in every step; see stats"
            )
        found = values[bounds[0] : bounds[-1]]
        if whole.any():
            found = found[np.repeat(~whole, lengths)]
        return found.reshape(int((~whole).sum()), max(channels, default=0))

    def _merged(self, lengths: Int64) -> NDArray[np.bool_]:
        """bool [S]: the steps whose channels are merged; `lengths` has those of the lists."""
        if CHANNELS_COLUMN not in self._selection.numbers:
            return np.zeros(len(self), np.bool_)
        merged: NDArray[np.bool_]
        merged = self._selection.numbers[CHANNELS_COLUMN][self._rows] != lengths
        return merged

    def _steps_of_channels(self) -> Int64:
        if CHANNELS_COLUMN not in self._selection.numbers:
            return self.steps
        ((_, offsets),) = self._selection.lists("count")
        lengths = np.diff(offsets[self._rows.start : self._rows.stop + 1])
        return self.steps[~self._merged(lengths)]

    @property
    def _info(self) -> SiteInfo:
        return self._selection.infos[self.name, self.kind]


class ChannelSeries(ArrayStatistics):
    """The statistics of a site channel by channel."""

    def __init__(self, site: SiteSeries) -> None:
        self._site = site

    @property
    def steps(self) -> Int64:
        """int64: the steps that have their channels, ascending."""
        return self._site._steps_of_channels()

    def _column(self, name: str) -> NDArray[Any]:
        return self._site._channel_column(name)


class Series(Mapping[Key, SiteSeries]):
    """Some sites over the steps of a run: a mapping from (name, kind), in order of first
    observation.

    Whatever is asked for is read for all sites of the series at once, from its columns alone, and
    is kept: `hist` and `channels` of many sites over many steps take memory accordingly.
    """

    def __init__(
        self,
        parts: Parts,
        names: str,
        kinds: str,
        whole: Whole,
    ) -> None:
        """whole: what merges the parts where they are of several ranks."""
        self._selection: Selection
        if parts.is_stored():
            self._selection = OfRank(parts, names, kinds)
        else:
            self._selection = Merged(parts, names, kinds, whole)
        bounds = self._selection.bounds
        self._sites = {
            key: SiteSeries(self._selection, key, slice(*bounds[i : i + 2]))
            for i, key in enumerate(self._selection.keys)
        }

    @property
    def steps(self) -> Int64:
        """int64: the steps that observed any of them, ascending."""
        return np.unique(self._selection.steps)

    def __getitem__(self, key: Key) -> SiteSeries:
        """One of the sites, by its full name and kind."""
        return self._sites[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def __repr__(self) -> str:
        some = ", ".join(map(repr, list(self._sites)[:_NAMED]))
        more = ", ..." if len(self) > _NAMED else ""
        sites = f"{len(self)} site{'s' * (len(self) != 1)}"
        return f"Series({sites}, {span(self.steps.tolist())}: {some}{more})"

    def _ipython_key_completions_(self) -> list[Key]:
        """What notebooks offer after ``series[``."""
        return list(self._sites)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))
