"""The record of one step: a table of all tensors, and a table of all channels or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hookstats.records.display import view_of
from hookstats.records.keys import Key, finder, hint, label
from hookstats.records.layout import Layout
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import columns_of, dead
from hookstats.stats.lazy_torch import torch
from hookstats.stats.merge import offsets_of, reduce_runs
from hookstats.stats.printable import printable
from hookstats.stats.state import MOMENTS, TALLIES

_T = TypeVar("_T")


class SiteInfo(NamedTuple):
    """The tensor that a row of `StepRecord.tensors` describes; equal from step to step unless
    shapes change.

    ``name`` is the qualified name of a module or parameter ("" is the root module); ``kind`` says
    which tensor, with the path of the leaf: "output", "output[1]", "grad_output", "param_grad".
    ``shape`` and ``dtype`` (such as "float32") are those of the last tensor seen in the step, with
    -1 for sizes that compiled graphs leave open.
    ``channels`` is the number of channels, also in records without them; ``channel_dim`` is None if
    the whole tensor is one channel. ``layout`` says which part of a tensor that is sharded over
    ranks this is; None if it is whole, or not known to be a part.
    """

    name: str
    kind: str
    channels: int
    channel_dim: int | None
    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None = None


class Table(NamedTuple):
    """The statistics of N tensors or channels, column by column.

    ``moments`` float64 [5, N]: mean, m2, min, max, l1; ``tallies`` int64 [5, N]: count, nan,
    posinf, neginf, zero; ``hist`` one histogram a row, empty where there are no bins.
    """

    moments: Float64
    tallies: Int64
    hist: SparseCounts

    @property
    def rows(self) -> int:
        """N."""
        return len(self.moments[0])

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        hist = self.hist
        arrays = (self.moments, self.tallies, hist.offsets, hist.slots, hist.counts)
        return sum([array.nbytes for array in arrays])

    def column(self, name: str) -> NDArray[Any]:
        """A column [N] by its name in `stats.state`."""
        return columns_of(self.moments.T, self.tallies.T)(name)

    @classmethod
    def joined(cls, tables: Sequence[Table]) -> Table:
        """The rows of several tables, one table after the other; a single table as it is."""
        if len(tables) == 1:
            return tables[0]
        none = np.zeros((len(MOMENTS), 0)), np.zeros((len(TALLIES), 0), np.int64)
        return cls(
            np.concatenate([none[0], *(table.moments for table in tables)], axis=1),
            np.concatenate([none[1], *(table.tallies for table in tables)], axis=1),
            SparseCounts.joined([SparseCounts.empty(0), *(table.hist for table in tables)]),
        )

    def chosen(self, rows: Int64) -> Table:
        """These rows, in this order."""
        return Table(self.moments[:, rows], self.tallies[:, rows], self.hist.chosen(rows))


@dataclass(frozen=True, eq=False, repr=False)
class StepRecord(Mapping[Key, ChannelStats]):
    """Everything observed in one step, a mapping from (name, kind) to ChannelStats.

    ``rank`` is the rank that observed it; None for the whole model, merged from several ranks.

    With S sites: ``sites`` S entries, in the order in which they first ran in the step;
    ``observed`` int64 [S], calls merged into each; ``tensors`` a row for each site, the statistics
    of the whole tensor, with histograms on ``bins``; ``channels`` a row for each channel, one site
    after the other, with histograms on ``channel_bins``; None where the channels of the step were
    not kept.
    The arrays are shared, not copied: read them, never write to them.
    ``scalars`` has the numbers of the step by name: what the training logged, learning rates as
    "lr/0", "grad_norm" (see `norms.gradient_norm`), "steps_per_second".
    """

    # A mapping is compared by its values: statistics have no one truth.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    step: int
    rank: int | None
    sites: tuple[SiteInfo, ...]
    observed: Int64
    tensors: Table
    channels: Table | None
    bins: Bins | None
    channel_bins: Bins | None
    scalars: Mapping[str, float] = field(default_factory=dict)
    known_dead: Int64 | None = None
    """int64 [S]: what `dead` was where the channels were not kept; -1 and None: unknown."""
    unread: tuple[str, ...] = ()
    """The parameters whose gradients arrived and could not be read; runs do not keep it."""

    def complete(self, scalars: Mapping[str, float]) -> None:
        """Replace `scalars`: some are logged after the step was closed."""
        object.__setattr__(self, "scalars", scalars)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @cached_property
    def _index(self) -> dict[Key, int]:
        return {(site.name, site.kind): i for i, site in enumerate(self.sites)}

    @property
    def rows(self) -> Table:
        """`channels` where they were kept, else `tensors`, each tensor as one channel."""
        return self.tensors if self.channels is None else self.channels

    @cached_property
    def offsets(self) -> Int64:
        """int64 [S + 1]: site s owns the rows ``offsets[s]:offsets[s + 1]`` of `rows`."""
        if self.channels is None:
            return np.arange(len(self.sites) + 1, dtype=np.int64)
        return channel_offsets(self.sites)

    @property
    def moments(self) -> Float64:
        """The moments of `rows`, float64 [R, 5]; a view with contiguous columns."""
        moments: Float64 = self.rows.moments.T
        return moments

    @property
    def tallies(self) -> Int64:
        """The tallies of `rows`, int64 [R, 5]; a view with contiguous columns."""
        tallies: Int64 = self.rows.tallies.T
        return tallies

    @property
    def hist(self) -> SparseCounts:
        """The histograms of the tensors."""
        return self.tensors.hist

    @cached_property
    def whole(self) -> ChannelStats:
        """The statistics of the tensors: its "channels" are the S sites; no `hist`."""
        moments, tallies, _ = self.tensors
        return ChannelStats(torch.from_numpy(moments.T), torch.from_numpy(tallies.T))

    @cached_property
    def dead(self) -> Int64:
        """int64 [S]: the dead channels of each site (see `stats.derived.dead`); -1 where nobody
        knows, as the channels were not kept."""
        if self.channels is None:
            unknown = np.full(len(self.sites), -1, np.int64)
            return unknown if self.known_dead is None else self.known_dead
        died = dead(self.channels.column).astype(np.int64)
        return reduce_runs(np.add, died, self.offsets, 0)

    def without_channels(self) -> StepRecord:
        """The record of the tensors alone."""
        if self.channels is None:
            return self
        return replace(self, channels=None, known_dead=self.dead)

    def __len__(self) -> int:
        """The number of sites."""
        return len(self.sites)

    def __iter__(self) -> Iterator[Key]:
        """(name, kind) of every site, in order of execution."""
        return iter(self._index)

    def __repr__(self) -> str:
        named = [f"{label(site.name)} {printable(site.kind)}" for site in self.sites]
        if len(named) > _NAMED:
            named[1:-1] = ["..."]
        sites = f"{len(self)} sites: {', '.join(named)}" if named else "0 sites"
        rank = "" if self.rank is None else f"rank={self.rank}, "
        return f"StepRecord(step={self.step}, {rank}{sites})"

    def _ipython_key_completions_(self) -> list[Key]:
        """What a notebook offers after ``record[``."""
        return list(self)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Key) -> ChannelStats:
        """The statistics of one site; a KeyError suggests sites with similar names.

        A plain kind, such as "output", means the only or the first tensor of several. Where the
        channels of the step were not kept, the tensor is one channel, and asking for its dead
        channels is a ValueError.
        """
        site = self._find(key)
        if site is None:
            raise KeyError(self._unknown(key))
        rows = slice(int(self.offsets[site]), int(self.offsets[site + 1]))
        counts = channel_counts = None
        if self.bins is not None:
            counts = torch.from_numpy(self.hist.dense_row(site, self.bins.slots))
        channel_bins = None if self.channels is None else self.channel_bins
        if channel_bins is not None:
            dense = self.rows.hist[rows].dense(channel_bins.slots)
            channel_counts = torch.from_numpy(dense)
        return ChannelStats(
            torch.tensor(self.moments[rows], device="cpu"),
            torch.tensor(self.tallies[rows], device="cpu"),
            counts=counts,
            bins=self.bins,
            channel_counts=channel_counts,
            channel_bins=channel_bins,
            missing=self._missing(site),
        )

    def _missing(self, site: int) -> str | None:
        """Why nobody can say which channels of a tensor are dead; None where that is known."""
        many = self.sites[site].channels
        if self.channels is not None or many < 2:
            return None
        dead = int(self.dead[site])
        known = f": {dead} of {many} were dead" if dead >= 0 else ""
        return (
            f"the channels of step {self.step} were not kept{known}; expected one of "
            'Run.steps_with_channels, or a run of channels="always"'
        )

    @cached_property
    def _finder(self) -> Callable[[str, str], Key | None]:
        return finder(self._index)

    def _find(self, key: object) -> int | None:
        """The site that `key` names."""
        match key:
            case (str(name), str(kind)):
                site = self._index.get((name, kind))
                if site is not None:  # usually, and building the finder takes long
                    return site
                found = self._finder(name, kind)
                return None if found is None else self._index[found]
        return None

    def _unknown(self, key: object) -> str:
        """The error message for a key that is not in the record."""
        message = f"no site {key!r} in step {self.step}"
        match key:
            case (str(name), str(kind)):
                return f"{message}: {hint(self._index, name, kind, (name,))}"
        return f"{message}: expected (name, kind), two strings"


def kept_of_sites(make: Callable[[tuple[SiteInfo, ...]], _T]) -> Callable[..., _T]:
    """Keep what `make` made of the last sites: most steps have the same tuple, and to hash it takes
    longer than what is made."""
    last: tuple[tuple[SiteInfo, ...] | None, Any] = None, None

    @wraps(make)
    def kept(sites: tuple[SiteInfo, ...]) -> _T:
        nonlocal last
        known = last  # another thread may replace it
        if known[0] is not sites:
            known = last = sites, make(sites)
        found: _T = known[1]
        return found

    return kept


@kept_of_sites
def channel_offsets(sites: tuple[SiteInfo, ...]) -> Int64:
    """int64 [S + 1]: where the channels of each site begin, one site after the other."""
    return offsets_of(np.array([site.channels for site in sites], np.int64))


_NAMED = 3  # sites that a representation names
