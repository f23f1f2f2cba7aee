"""The columnar record of one step: what every site saw, in a handful of NumPy arrays."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hookstats.bins import Bins
from hookstats.channel_stats import ChannelStats

Int64 = NDArray[np.int64]
Int32 = NDArray[np.int32]
Float64 = NDArray[np.float64]
Key = tuple[str, str]


class SiteInfo(NamedTuple):
    """Where in the model a row range comes from; equal from step to step unless shapes change.

    ``name`` is the qualified name of a module or parameter ("" is the root module); ``kind`` says
    which tensor, with the path of the leaf: "output", "output[1]", "grad_output", "param_grad".
    ``shape`` and ``dtype`` (such as "float32") are those of the last tensor seen in the step, with
    -1 for sizes that compiled graphs leave open;
    ``channel_dim`` is None where the whole tensor is one channel.
    """

    name: str
    kind: str
    channels: int
    channel_dim: int | None
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class SparseCounts:
    """Histogram counts of many rows, nonzero slots only (compressed sparse rows).

    Row r owns entries ``offsets[r]:offsets[r + 1]`` of ``slots`` and ``counts``; its slots ascend.
    offsets: int64 [rows + 1]; slots: int32 [nnz]; counts: int64 [nnz], all > 0.
    """

    offsets: Int64
    slots: Int32
    counts: Int64

    @property
    def rows(self) -> int:
        """How many histograms there are."""
        return len(self.offsets) - 1

    @classmethod
    def empty(cls, rows: int) -> SparseCounts:
        """`rows` histograms that counted nothing."""
        return cls(np.zeros(rows + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.int64))

    @classmethod
    def from_dense(cls, dense: Int64) -> SparseCounts:
        """The nonzero entries of ``dense``, int64 [rows, slots]."""
        if dense.ndim != 2:
            raise ValueError(f"dense: shape {dense.shape}, expected two dimensions (rows, slots)")
        rows, width = dense.shape
        flat = np.flatnonzero(dense != 0)  # twice as fast on booleans
        offsets = np.searchsorted(flat, np.arange(rows + 1, dtype=np.int64) * width)
        starts = np.repeat(np.arange(rows, dtype=np.int64) * width, np.diff(offsets))
        slots = (flat - starts).astype(np.int32)
        return cls(offsets.astype(np.int64), slots, dense.reshape(-1)[flat].astype(np.int64))

    def __getitem__(self, rows: slice) -> SparseCounts:
        """Some consecutive rows; shares the entries."""
        start, stop, step = rows.indices(self.rows)
        if step != 1:
            raise ValueError(f"rows: {rows}, expected a slice with step 1")
        bounds = self.offsets[start : max(start, stop) + 1]
        entries = slice(bounds[0], bounds[-1])
        return SparseCounts(bounds - bounds[0], self.slots[entries], self.counts[entries])

    def dense(self, row: int | slice, slots: int) -> Int64:
        """All `slots` counts of one row, int64 [slots], or of a slice of rows, [n, slots]."""
        chosen = range(self.rows)[row]
        span = chosen if isinstance(chosen, range) else range(chosen, chosen + 1)
        if span.step != 1:
            raise ValueError(f"row: {row}, expected a slice with step 1")
        bounds = self.offsets[span.start : span.start + len(span) + 1]
        entries = slice(bounds[0], bounds[-1])
        out = np.zeros((len(span), slots), np.int64)
        rows = np.repeat(np.arange(len(span)), np.diff(bounds))
        out[rows, self.slots[entries]] = self.counts[entries]
        return out if isinstance(row, slice) else out[0]


@dataclass(frozen=True, eq=False)
class StepRecord:
    """Everything one rank observed in one step, a mapping from (name, kind) to ChannelStats.

    With S sites and R rows (the channels of all sites, one site after the other):
    ``sites`` S entries in order of first observation; ``observed`` int64 [S], calls merged into
    each; ``offsets`` int64 [S + 1], site s owns rows ``offsets[s]:offsets[s + 1]``;
    ``moments`` float64 [R, 5]: mean, m2, min, max, l1; ``tallies`` int64 [R, 5]: count, nan,
    posinf, neginf, zero; ``hist`` one row a site (S rows) on ``bins``; ``channel_hist`` one row a
    channel (R rows) on ``channel_bins``. Where bins are None the counts are empty.
    The arrays are shared, not copied: read them, never write to them.
    """

    step: int
    rank: int
    sites: tuple[SiteInfo, ...]
    observed: Int64
    offsets: Int64
    moments: Float64
    tallies: Int64
    bins: Bins | None
    hist: SparseCounts
    channel_bins: Bins | None
    channel_hist: SparseCounts

    def _repr_html_(self) -> str:
        from hookstats.report import fragments

        return fragments.record_html(self)

    @cached_property
    def _index(self) -> dict[Key, int]:
        return {(site.name, site.kind): i for i, site in enumerate(self.sites)}

    def keys(self) -> list[Key]:
        """(name, kind) of every site, in order of first observation."""
        return list(self._index)

    def __len__(self) -> int:
        return len(self.sites)

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __getitem__(self, key: Key) -> ChannelStats:
        """The statistics of one site; a KeyError names sites that are spelled alike.

        A plain kind, such as "output", names the only or the first tensor of several.
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
            torch.tensor(self.moments[rows]),
            torch.tensor(self.tallies[rows]),
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
                found = self._finder(name, kind)
                return None if found is None else self._index[found]
        return None

    def _unknown(self, key: object) -> str:
        """What to say of a key that is not there."""
        message = f"no site {key!r} in step {self.step}"
        match key:
            case (str(name), str(kind)):
                return f"{message}: {hint(self._index, name, kind, (name,))}"
        return f"{message}: expected (name, kind), two strings"


def finder(keys: Iterable[Key]) -> Callable[[str, str], Key | None]:
    """A function that says which of `keys` a name and a kind mean, if any.

    A plain kind, such as "output", means the only or the first tensor of several; a last "[0]"
    goes without saying.
    """
    # Gradients come in any order: theirs is that of the values, where those were observed.
    rank = {key: i for i, key in enumerate(keys)}
    first: dict[Key, Key] = {}
    for name, kind in sorted(
        rank, key=lambda key: rank.get((key[0], key[1].removeprefix("grad_")), rank[key])
    ):
        plain = re.split(r"[.\[]", kind, maxsplit=1)[0]
        first.setdefault((name, plain), (name, kind))

    def find(name: str, kind: str) -> Key | None:
        exact = (name, kind)
        return exact if exact in rank else first.get((name, kind.removesuffix("[0]")))

    return find


def hint(keys: Iterable[Key], name: str, kind: str, chosen: Collection[str]) -> str:
    """What to say where `name`, which means the names `chosen`, and `kind` mean none of `keys`."""
    keys = list(keys)
    kinds = list(dict.fromkeys(kind for site, kind in keys if site in chosen))
    if kinds:
        close = difflib.get_close_matches(kind, kinds, n=1)
        alike = f"; did you mean {close[0]!r}?" if close else ""
        return f"{name!r} has the kinds {', '.join(map(repr, kinds))}{alike}"
    names = list(dict.fromkeys(site for site, _ in keys))
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"{len(names)} names, such as {', '.join(map(repr, names[:3]))}"
