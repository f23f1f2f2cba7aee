"""Series and SiteSeries: what one rank recorded of some sites, as arrays over the steps."""

from __future__ import annotations

import errno
import fnmatch
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hookstats.records.display import view_of
from hookstats.records.keys import Key, finder, hint
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.runs.columns import HIGHER_COLUMNS, state_column
from hookstats.runs.format import TENSOR_COLUMNS, PartName
from hookstats.runs.parts import Parts, Where
from hookstats.stats.bins import Bins
from hookstats.stats.channel_stats import ChannelStats
from hookstats.stats.derived import Statistics, dead, no_column, statistic
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
        """One of `columns.COLUMNS` or `columns.HIGHER_COLUMNS`; see `derived.no_column`."""


class SiteSeries(ArrayStatistics):
    """One site over the S steps that observed it, with statistics [S] of the whole tensor.

    Arrays are shared, not copied: read them, never write to them.
    """

    def __init__(self, selection: _Selection, key: Key, rows: slice) -> None:
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
    def higher(self) -> bool:
        """Whether there are third and fourth moments, and so skewness and kurtosis."""
        return "tensor_m3" in self._selection.numbers

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
    def channels(self) -> ArrayStatistics:
        """The same statistics channel by channel, [S, C].

        Raises:
            ValueError: (when an array is asked for) steps have different numbers of channels.
        """
        return _Channels(self)

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
        numbers = self._selection.numbers
        if f"tensor_{name}" not in numbers:
            raise no_column(name)
        return numbers[f"tensor_{name}"]

    def _channel_column(self, name: str) -> NDArray[Any]:
        self._numbers(name)  # raises where it is not stored
        (values, offsets), (_, counted) = self._selection.lists(name, "count")
        if not np.array_equal(offsets, counted):
            raise ValueError(
                f"{printable(str(self._selection.parts.run))}: damaged: columns 'count' and "
                f"{name!r} have lists of different lengths"
            )
        bounds = offsets[self._rows.start : self._rows.stop + 1]
        channels = set(np.diff(bounds).tolist())
        if len(channels) > 1:
            raise ValueError(
                f"{self.kind} of {self.name!r}: {min(channels)} to {max(channels)} channels, "
                "expected the same number in every step; see stats"
            )
        return values[bounds[0] : bounds[-1]].reshape(len(self), -1)

    @property
    def _info(self) -> SiteInfo:
        return self._selection.infos[self.name, self.kind]


class _Channels(ArrayStatistics):
    """The statistics of a site channel by channel."""

    def __init__(self, site: SiteSeries) -> None:
        self._site = site

    @property
    def higher(self) -> bool:
        return self._site.higher

    def _column(self, name: str) -> NDArray[Any]:
        return self._site._channel_column(name)


class Series(Mapping[Key, SiteSeries]):
    """Some sites over the steps of one rank: a mapping from (name, kind), in order of first
    observation.

    Whatever is asked for is read for all sites of the series at once, from its columns alone, and
    is kept: `hist` and `channels` of many sites over many steps take memory accordingly.
    """

    def __init__(self, parts: Parts, names: str, kinds: str, rank: int) -> None:
        self.rank = rank
        """The rank that observed them."""
        self._selection = _Selection(parts, names, kinds, rank)
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
        of = f", rank {self.rank}" if self.rank else ""
        sites = f"{len(self)} site{'s' * (len(self) != 1)}"
        return f"Series({sites}, {span(self.steps.tolist())}{of}: {some}{more})"

    def _ipython_key_completions_(self) -> list[Key]:
        """What notebooks offer after ``series[``."""
        return list(self._sites)

    def _repr_html_(self) -> str:
        return str(view_of(self, "html"))


class _Selection:
    """The rows of the chosen sites, site by site and in order of steps: N in all."""

    def __init__(self, parts: Parts, names: str, kinds: str, rank: int) -> None:
        self.parts = parts
        keys: dict[Key, int] = {}
        found = [rows for part in parts.valid(rank).items() if (rows := _find(parts, *part, keys))]
        if not found:
            known = ", ".join(map(str, parts.index)) or "none"
            raise KeyError(f"rank {rank} has no steps; {parts.run} has ranks with steps: {known}")
        self.keys = choose(list(keys), names, kinds)
        """The chosen sites."""
        number = np.full(len(keys), -1)  # of a site among the chosen
        number[[keys[key] for key in self.keys]] = np.arange(len(self.keys))
        sites = number[np.concatenate([part.sites for part in found])]
        steps = np.concatenate([part.steps for part in found])[sites >= 0]
        sites = sites[sites >= 0]
        self._order = np.argsort(sites, kind="stable")
        self._masks = {}  # by part, which of its rows were chosen
        for part in found:
            mask = part.mask.copy()
            mask[mask] = number[part.sites] >= 0
            self._masks[part.name] = mask
        self.steps: Int64 = steps[self._order]
        """int64 [N]."""
        self.bounds: list[int] = [
            0,
            *np.cumsum(np.bincount(sites, minlength=len(self.keys))).tolist(),
        ]
        """[sites + 1]: site i owns rows bounds[i]:bounds[i + 1]."""
        self._records = parts.index[rank].copy()
        self._lists: dict[str, tuple[NDArray[Any], Int64]] = {}

    @cached_property
    def numbers(self) -> dict[str, NDArray[Any]]:
        """[N] each: the columns with one number a row, by name."""
        higher = HIGHER_COLUMNS if self.parts.all_higher(self._masks) else ()
        names = ("observed", *TENSOR_COLUMNS, *(f"tensor_{name}" for name in higher))
        tables = [table.filter(mask) for mask, table in self._read(names)]
        return {
            name: np.concatenate([t.column(name).to_numpy() for t in tables])[self._order]
            for name in names
        }

    def record(self, step: int) -> StepRecord:
        """The record of a step that observed any of the sites."""
        return self.parts.record(self._records[step])

    @cached_property
    def infos(self) -> dict[Key, SiteInfo]:
        """The description of each site in the last record that has the site."""
        last: dict[int, set[Key]] = {}
        for key, end in zip(self.keys, self.bounds[1:], strict=True):
            last.setdefault(int(self.steps[end - 1]), set()).add(key)
        return {
            (site.name, site.kind): site
            for step, keys in last.items()
            for site in self.record(step).sites
            if (site.name, site.kind) in keys
        }

    def lists(self, *names: str) -> list[tuple[NDArray[Any], Int64]]:
        """Columns of lists: the values of each, and int64 [N + 1], where each row's begin."""
        missing = [name for name in dict.fromkeys(names) if name not in self._lists]
        found: dict[str, list[Any]] = {name: [] for name in missing}
        if missing:
            for mask, table in self._read(missing):
                table = table if mask.all() else table.filter(mask)
                for name in missing:
                    found[name].append(table.column(name).combine_chunks())
        for name, columns in found.items():
            lengths = [column.value_lengths().to_numpy(zero_copy_only=False) for column in columns]
            values = [column.flatten().to_numpy() for column in columns]
            lists = np.concatenate(values), np.concatenate(lengths).astype(np.int64)
            self._lists[name] = _in_order(*lists, self._order)
        return [self._lists[name] for name in names]

    def _read(self, columns: Sequence[str]) -> Iterator[tuple[NDArray[np.bool_], Any]]:
        """For each part, which rows were chosen, bool, and a pyarrow.Table of all its rows."""
        for name, mask in self._masks.items():
            yield mask, self._table(name, columns)

    def _table(self, name: PartName, columns: Sequence[str]) -> Any:
        try:
            return self.parts.read(name, columns)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                errno.ENOENT, "deleted since the series was asked for; ask for it again", str(name)
            ) from error
        except (OSError, ValueError) as error:
            self.parts.skip(name, error)
            raise


class _Rows(NamedTuple):
    """The valid rows of a part, R in all."""

    name: PartName
    mask: NDArray[np.bool_]
    """Which of all its rows they are."""
    steps: Int64
    """int64 [R]."""
    sites: Int64
    """int64 [R]: the numbers of their sites."""


def _find(parts: Parts, name: PartName, records: list[Where], keys: dict[Key, int]) -> _Rows | None:
    """The valid rows of a part, new sites being numbered in `keys`; None if it is no more."""
    try:
        with parts.naming(name):
            return _rows(parts, name, records, keys)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        if not parts.skip(name, error):
            raise
        return None


def _rows(parts: Parts, name: PartName, records: list[Where], keys: dict[Key, int]) -> _Rows:
    table = parts.read(name, ("step", "site", "kind"))  # the steps are compared
    mask = parts.rows(name, records)
    names, kinds = (table.column(c).combine_chunks() for c in ("site", "kind"))
    width = max(1, len(kinds.dictionary))
    codes = names.indices.to_numpy().astype(np.int64) * width + kinds.indices.to_numpy()
    codes, first, inverse = np.unique(codes[mask], return_index=True, return_inverse=True)
    texts, kind_texts = names.dictionary.to_pylist(), kinds.dictionary.to_pylist()
    named = [(texts[code // width], kind_texts[code % width]) for code in codes.tolist()]
    number = np.empty(len(codes), np.int64)
    for i in np.argsort(first).tolist():
        number[i] = keys.setdefault(named[i], len(keys))
    steps = np.repeat([where.step for where in records], [where.rows for where in records])
    return _Rows(name, mask, steps.astype(np.int64), number[inverse])


def _in_order(
    values: NDArray[Any], lengths: Int64, order: NDArray[np.intp]
) -> tuple[NDArray[Any], Int64]:
    """Lists one after the other, put into another order, and their offsets."""
    starts = np.cumsum(lengths) - lengths
    lengths = lengths[order]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if len(order) > 1 and (np.diff(order) != 1).any():
        values = values[np.arange(offsets[-1]) + np.repeat(starts[order] - offsets[:-1], lengths)]
    return values, offsets


def choose(keys: Collection[Key], names: str = "*", kinds: str = "*") -> list[Key]:
    """The keys, (name, kind) each, that match; in the order of `keys`.

    Args:
        names: a name, or a glob.
        kinds: a kind, which means its only or first tensor, or a glob with "*" or "?".
    Raises:
        KeyError: nothing matches; the message suggests similar names.
    """
    known = {name for name, _ in keys}
    chosen = {names} & known or {name for name in known if fnmatch.fnmatchcase(name, names)}
    if "*" in kinds or "?" in kinds:
        glob = kinds.replace("[", "[[]")  # the leaves of "output[*]"
        found = [key for key in keys if key[0] in chosen and fnmatch.fnmatchcase(key[1], glob)]
    else:
        find = finder(keys)
        meant = {find(name, kinds) for name in chosen}
        found = [key for key in keys if key in meant]
    if not found:
        raise KeyError(f"no site {(names, kinds)!r}: {hint(keys, names, kinds, chosen)}")
    return found
