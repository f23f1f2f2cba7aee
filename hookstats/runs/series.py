"""Series and SiteSeries: what was recorded of some sites, as arrays over the steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hookstats.records.display import view_of
from hookstats.records.keys import Key
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Float64, Int64
from hookstats.runs.format import CHANNELS, TENSORS
from hookstats.runs.merged import MergedRecords
from hookstats.runs.parts import Parts
from hookstats.runs.selections import Selection, choose
from hookstats.stats.bins import Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import Statistics, dead, statistic

_NAMED = 3  # sites in the representation of a series


def span(steps: Sequence[int]) -> str:
    """Ascending steps in words: "84 steps, 0 to 83", "step 7"."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if steps else "no steps"


class ArrayStatistics(Statistics[Int64, Float64]):
    """Statistics as NumPy arrays of one shape."""

    def _of(self, name: str) -> NDArray[Any]:
        return statistic(name, self._state)

    @abstractmethod
    def _state(self, name: str) -> NDArray[Any]:
        """A column of the state."""


class SiteSeries(ArrayStatistics):
    """One site over the S steps that observed it, with statistics [S] of the whole tensor.

    Arrays are shared, not copied: read them, never write to them.
    """

    def __init__(self, series: Series, key: Key, rows: slice) -> None:
        self.name = key[0]
        """The qualified name of the module or parameter."""
        self.kind = key[1]
        """Which tensor, with the path of the leaf: "output", "output[1]", "param_grad"."""
        self._series = series
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
        return self._series._parts.bins

    @property
    def channel_bins(self) -> Bins | None:
        """The bins of the channels' histograms, in `stats`; None where there were none."""
        return self._series._parts.channel_bins

    @property
    def channel_dim(self) -> int | None:
        """The dimension of the channels in the last step; None if the tensor is one channel."""
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
        steps: Int64 = self._series._tensors.steps[self._rows]
        return steps

    @property
    def observed(self) -> Int64:
        """int64 [S]: calls merged into each step."""
        return self._state("observed")

    @property
    def dead(self) -> Int64:
        """int64 [S]: the dead channels, see `insight.dead`; of merged ranks -1 in steps whose
        channels were not kept."""
        return self._state("dead").astype(np.int64)

    def stats(self, i: int) -> ChannelStats:
        """The statistics of the channels in step ``steps[i]``, with histograms; where they were
        not kept, the tensor as one channel."""
        return self._series._records.record(int(self.steps[i]))[self.name, self.kind]

    @property
    def channels(self) -> ChannelSeries:
        """The same statistics channel by channel, [S, C], of the steps that kept their channels.

        Raises:
            ValueError: (when an array is asked for) steps have different numbers of channels.
        """
        return ChannelSeries(self._series, self.name, self.kind)

    @property
    def hist(self) -> Int64 | None:
        """int64 [S, slots]: the tensor's histogram, slots as in `bins`; None without `bins`."""
        if self.bins is None:
            return None
        return self._series._tensors.hist(self._rows).dense(self.bins.slots)

    def _state(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._series._tensors.column(name)[self._rows]
        return column

    @property
    def _info(self) -> SiteInfo:
        return self._series._tensors.info((self.name, self.kind))


class ChannelSeries(ArrayStatistics):
    """The statistics of a site channel by channel, [S, C], over the steps that kept them."""

    def __init__(self, series: Series, name: str, kind: str) -> None:
        self._series = series
        self._key = name, kind

    @cached_property
    def _rows(self) -> slice:
        selection = self._series._channels
        if self._key not in selection.keys:
            return slice(0, 0)
        site = selection.keys.index(self._key)
        return slice(*selection.bounds[site : site + 2])

    @property
    def steps(self) -> Int64:
        """int64 [S]: the steps that have their channels, ascending."""
        return np.unique(self._series._channels.steps[self._rows])

    @property
    def dead(self) -> NDArray[np.bool_]:
        """bool [S, C]: whether there are finite values and all of them are zero."""
        return dead(self._state)

    def _state(self, name: str) -> NDArray[Any]:
        selection = self._series._channels
        steps, channels = np.unique(selection.steps[self._rows], return_counts=True)
        if len(set(channels.tolist())) > 1:
            name, kind = self._key
            raise ValueError(
                f"{kind} of {name!r}: {min(channels)} to {max(channels)} channels, "
                "expected the same number in every step; see stats"
            )
        values: NDArray[Any] = selection.column(name)[self._rows]
        return values.reshape(len(steps), -1 if len(steps) else 0)


class Series(Mapping[Key, SiteSeries]):
    """Some sites over the steps of a run: a mapping from (name, kind), in order of first
    observation.

    An array is read when it is first asked for, for all sites of the series at once, and is kept:
    `hist` and `channels` of many sites over many steps take memory accordingly.
    """

    def __init__(self, parts: Parts, records: MergedRecords, names: str, kinds: str) -> None:
        """records: those of all ranks that the parts have."""
        self._parts = parts
        self._records = records

        def chosen(keys: Collection[Key]) -> list[Key]:
            if not keys:
                has = "tensors in its steps" if parts.index else "steps"
                raise KeyError(f"{parts.run} has no {has} yet")
            return choose(keys, names, kinds)

        self._tensors = Selection(parts, records, TENSORS, chosen)
        bounds = self._tensors.bounds
        self._sites = {
            key: SiteSeries(self, key, slice(*bounds[i : i + 2]))
            for i, key in enumerate(self._tensors.keys)
        }

    @cached_property
    def _channels(self) -> Selection:
        """The rows of their channels."""

        def chosen(keys: Collection[Key]) -> list[Key]:
            return [key for key in keys if key in self._sites]

        return Selection(self._parts, self._records, CHANNELS, chosen)

    @property
    def steps(self) -> Int64:
        """int64: the steps that observed any of them, ascending."""
        return np.unique(self._tensors.steps)

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
