"""The columnar record of one step: what every site observed, in a handful of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hookstats.records.display import view_of
from hookstats.records.keys import Key, finder, hint, label
from hookstats.records.layout import Layout
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.stats.bins import Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.later import torch
from hookstats.stats.merge import merge
from hookstats.stats.printable import printable


class SiteInfo(NamedTuple):
    """The tensor that a range of rows describes; equal from step to step unless shapes change.

    ``name`` is the qualified name of a module or parameter ("" is the root module); ``kind`` says
    which tensor, with the path of the leaf: "output", "output[1]", "grad_output", "param_grad".
    ``shape`` and ``dtype`` (such as "float32") are those of the last tensor seen in the step, with
    -1 for sizes that compiled graphs leave open.
    ``channel_dim`` is None if the whole tensor is one channel. ``layout`` says which part of a
    tensor that is spread over ranks this is; None if it is whole, or not known to be a part.
    ``merged`` is the number of channels that `of_tensors` merged into one row; 0 where the rows are
    the site's channels.
    """

    name: str
    kind: str
    channels: int
    channel_dim: int | None
    shape: tuple[int, ...]
    dtype: str
    layout: Layout | None = None
    merged: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class StepRecord(Mapping[Key, ChannelStats]):
    """Everything observed in one step, a mapping from (name, kind) to ChannelStats.

    ``rank`` is the rank that observed it; None for the whole model, merged from several ranks.

    With S sites and R rows (the channels of all sites, one site after the other):
    ``sites`` S entries in order of first observation; ``observed`` int64 [S], calls merged into
    each; ``offsets`` int64 [S + 1], site s owns rows ``offsets[s]:offsets[s + 1]``;
    ``moments`` float64 [R, 5]: mean, m2, min, max, l1; ``tallies`` int64 [R, 5]: count,
    nan, posinf, neginf, zero; ``hist`` one row per site (S rows) on ``bins``; ``channel_hist`` one
    row per channel (R rows) on ``channel_bins``. If bins are None, the counts are empty. The
    arrays are shared, not copied: read them, never write to them.
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
    offsets: Int64
    moments: Float64
    tallies: Int64
    bins: Bins | None
    hist: SparseCounts
    channel_bins: Bins | None
    channel_hist: SparseCounts
    scalars: Mapping[str, float] = field(default_factory=dict)

    def complete(self, scalars: Mapping[str, float]) -> None:
        """Replace `scalars`: some are logged after the step was closed."""
        object.__setattr__(self, "scalars", scalars)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))

    @cached_property
    def _index(self) -> dict[Key, int]:
        return {(site.name, site.kind): i for i, site in enumerate(self.sites)}

    @cached_property
    def whole(self) -> ChannelStats:
        """The statistics of the sites' whole tensors: its "channels" are the S sites; no `hist`."""
        moments, tallies = self.whole_state
        return ChannelStats(torch.from_numpy(moments), torch.from_numpy(tallies))

    @cached_property
    def whole_state(self) -> tuple[Float64, Int64]:
        """The moments [S, 5 or 7] and tallies [S, 5] of `whole`, merged when first asked for."""
        return merge(self.moments, self.tallies, self.site_of_row, len(self))

    @cached_property
    def site_of_row(self) -> Int64:
        """int64 [R]: the site of each row."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def keep_whole(self, moments: Float64, tallies: Int64) -> None:
        """Have `whole_state` be these, merged together with those of other records."""
        vars(self)["whole_state"] = moments, tallies

    def __len__(self) -> int:
        """The number of sites."""
        return len(self.sites)

    def __iter__(self) -> Iterator[Key]:
        """(name, kind) of every site, in order of first observation."""
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

        A plain kind, such as "output", means the only or the first tensor of several.
        """
        site = self._find(key)
        if site is None:
            raise KeyError(self._unknown(key))
        rows = slice(int(self.offsets[site]), int(self.offsets[site + 1]))
        counts = channel_counts = None
        if self.bins is not None:
            counts = torch.from_numpy(self.hist.dense(site, self.bins.slots))
        if self.channel_bins is not None:
            dense = self.channel_hist.dense(rows, self.channel_bins.slots)
            channel_counts = torch.from_numpy(dense)
        return ChannelStats(
            torch.tensor(self.moments[rows], device="cpu"),
            torch.tensor(self.tallies[rows], device="cpu"),
            counts=counts,
            bins=self.bins,
            channel_counts=channel_counts,
            channel_bins=self.channel_bins,
        )

    @cached_property
    def _finder(self) -> Callable[[str, str], Key | None]:
        return finder(self._index)

    def _find(self, key: object) -> int | None:
        """The site that `key` names."""
        match key:
            case (str(name), str(kind)):
                site = self._index.get((name, kind))
                if site is not None:  # as a rule, and the finder takes long to make
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


_NAMED = 3  # sites that a representation names
