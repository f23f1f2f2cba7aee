"""Merger: the records of several ranks as the record of the whole model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import is_not
from typing import NamedTuple

import numpy as np
import torch

from hookstats.records.groups import over_site, per_site
from hookstats.records.keys import PARAMETER_KINDS, Key, plain_kind
from hookstats.records.layout import REPLICATE, UNKNOWN, Axis, Layout, shard_dim
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Float64, Int64, SparseCounts
from hookstats.records.tensors import of_tensors
from hookstats.stats.state import combine

_Sites = tuple[SiteInfo, ...]


class _Part(NamedTuple):
    """A rank's part of a site."""

    record: int
    site: int
    info: SiteInfo


class Merger:
    """Makes the record of the whole model from those of some ranks, of one step.

    What the layouts of the sites say decides: parts along the channels are put side by side, other
    parts are merged channel by channel, and of replicas the one of the lowest rank stands for all.
    Without a layout, tensors of modules are parts of a batch, and parameters whose statistics are
    equal to the bit are replicas. `observed` is the greatest number of calls of any rank, as a call
    on all ranks is one call of the whole model. The result is the same to the bit in every reading.

    What follows from the sites is kept for the next step, whose sites mostly are the same objects.
    """

    def __init__(self) -> None:
        self._sites: tuple[_Sites, ...] = ()
        self._parts: dict[Key, list[_Part]] = {}
        self._plans: dict[frozenset[_Twin], _Plan] = {}

    def __call__(self, records: Sequence[StepRecord]) -> StepRecord:
        """records: in order of rank. Where one has whole tensors alone, those of all are merged."""
        if any(site.merged for record in records for site in record.sites):
            records = [of_tensors(record) for record in records]
        sites = tuple(record.sites for record in records)
        if len(sites) != len(self._sites) or any(map(is_not, sites, self._sites)):
            self._sites, self._parts, self._plans = sites, _by_key(sites), {}
        twins = frozenset(_twins(records, self._parts))
        if twins not in self._plans:
            self._plans[twins] = _plan(sites, self._parts, twins)
        plan = self._plans[twins]
        first = records[0]
        columns = min(record.moments.shape[1] for record in records)
        rows = plan.rows
        some = list(zip(records, plan.scattered, strict=True))
        moments, tallies = per_site(
            np.concatenate([record.moments[each, :columns] for record, each in some])[rows.order],
            np.concatenate([record.tallies[each] for record, each in some])[rows.order],
            rows.bounds,
        )
        for stack in plan.stacks:
            _merge_stack(records, stack, moments, tallies)
        observed = np.concatenate([record.observed for record in records])[plan.of_sites.order]
        return StepRecord(
            step=first.step,
            rank=None,
            sites=plan.sites,
            observed=over_site(np.maximum, observed, plan.of_sites.bounds, 0),
            offsets=plan.offsets,
            moments=moments,
            tallies=tallies,
            bins=first.bins,
            hist=SparseCounts.added(
                [record.hist for record in records], plan.of_sites.of_input, len(plan.sites)
            ),
            channel_bins=first.channel_bins,
            channel_hist=_channel_hist(records, plan),
        )


_Twin = tuple[Key, int, int]
"""A site, and two records in which its states are equal to the bit: the first such, and another."""


class _Gather(NamedTuple):
    """Which inputs go into which output: output i has the inputs order[bounds[i]:bounds[i + 1]]."""

    order: Int64
    bounds: Int64
    of_input: Int64
    """The output of each input; -1 for none."""


def _gather(of_input: Int64, outputs: int) -> _Gather:
    kept = np.flatnonzero(of_input >= 0)
    order = kept[np.argsort(of_input[kept], kind="stable")]
    bounds = np.searchsorted(of_input[order], np.arange(outputs + 1))
    return _Gather(order, bounds.astype(np.int64), of_input)


class _Stack(NamedTuple):
    """A site of which all parts have all channels, and in all many: the parts are merged as they
    lie in the records, in a quarter of the time."""

    rows: slice
    """Of the output."""
    records: tuple[int, ...]
    spans: tuple[slice, ...]
    """The rows in each of these records."""


class _Plan(NamedTuple):
    """How the rows of records become those of one."""

    sites: _Sites
    offsets: Int64
    of_sites: _Gather
    scattered: list[Int64]
    """Of each record, the rows that are in no stack."""
    rows: _Gather
    """Where these go."""
    stacks: list[_Stack]
    of_rows: Int64
    """The output row of each row of all records; -1 for none."""


_STACKED = 4096
"""From so many rows of a site on, a loop over sites costs less than to sort rows."""


def _channel_hist(records: Sequence[StepRecord], plan: _Plan) -> SparseCounts:
    rows = int(plan.offsets[-1])
    if records[0].channel_bins is None:
        return SparseCounts.empty(rows)
    return SparseCounts.added([record.channel_hist for record in records], plan.of_rows, rows)


def _merge_stack(
    records: Sequence[StepRecord], stack: _Stack, moments: Float64, tallies: Int64
) -> None:
    columns = moments.shape[1]
    parts = [(records[i], rows) for i, rows in zip(stack.records, stack.spans, strict=True)]
    merged = combine(
        torch.from_numpy(np.stack([record.moments[rows, :columns] for record, rows in parts])),
        torch.from_numpy(np.stack([record.tallies[rows] for record, rows in parts])),
    )
    moments[stack.rows], tallies[stack.rows] = merged[0].numpy(), merged[1].numpy()


def _twins(records: Sequence[StepRecord], sites: Mapping[Key, list[_Part]]) -> Iterator[_Twin]:
    """The sites whose parts may be replicas, and are."""
    for key, parts in sites.items():
        if not any(_is_unknown(part.info) for part in parts):
            continue
        earliest: dict[bytes, int] = {}
        for part in parts:
            first = earliest.setdefault(_bits(records[part.record], part.site), part.record)
            if first != part.record:
                yield key, first, part.record


def _bits(record: StepRecord, site: int) -> bytes:
    rows = slice(int(record.offsets[site]), int(record.offsets[site + 1]))
    moments, tallies = (np.ascontiguousarray(x[rows]) for x in (record.moments, record.tallies))
    return moments.tobytes() + tallies.tobytes()


def _is_unknown(info: SiteInfo) -> bool:
    if info.layout is None:
        return plain_kind(info.kind) in PARAMETER_KINDS
    return UNKNOWN in info.layout.placements


def _by_key(records: tuple[_Sites, ...]) -> dict[Key, list[_Part]]:
    """The parts of each site, in order of rank; sites in order of rank and first observation."""
    found: dict[Key, list[_Part]] = defaultdict(list)
    for record, sites in enumerate(records):
        for site, info in enumerate(sites):
            found[info.name, info.kind].append(_Part(record, site, info))
    return found


def _plan(
    records: tuple[_Sites, ...], by_key: Mapping[Key, list[_Part]], equal: frozenset[_Twin]
) -> _Plan:
    twins = {(key, later): earlier for key, earlier, later in equal}
    first_site = np.cumsum([0, *map(len, records)])
    first_row = [
        np.cumsum([0, *(info.channels for info in sites)], dtype=np.int64) for sites in records
    ]
    base = np.cumsum([0, *(int(rows[-1]) for rows in first_row)])
    of_sites = np.full(first_site[-1], -1, np.int64)
    of_rows = np.full(base[-1], -1, np.int64)
    sites: list[SiteInfo] = []
    stacks: list[_Stack] = []
    stacked = np.zeros(base[-1], bool)
    offsets = [0]
    for key, parts in by_key.items():
        kept = _distinct(key, parts, twins)
        info, places = _placed([part.info for part in kept])
        starts = [int(first_row[part.record][part.site]) for part in kept]
        for part, start, place in zip(kept, starts, places, strict=True):
            of_sites[first_site[part.record] + part.site] = len(sites)
            start += int(base[part.record])
            of_rows[start : start + part.info.channels] = offsets[-1] + place
        whole = np.arange(info.channels)
        if len(kept) * info.channels >= _STACKED and all(np.array_equal(p, whole) for p in places):
            spans = tuple(slice(start, start + info.channels) for start in starts)
            in_records = tuple(part.record for part in kept)
            stacks.append(
                _Stack(slice(offsets[-1], offsets[-1] + info.channels), in_records, spans)
            )
            for record, span in zip(in_records, spans, strict=True):
                stacked[base[record] + span.start : base[record] + span.stop] = True
        sites.append(info)
        offsets.append(offsets[-1] + info.channels)
    return _Plan(
        tuple(sites),
        np.array(offsets, np.int64),
        _gather(of_sites, len(sites)),
        [np.flatnonzero(~stacked[a:b]) for a, b in pairwise(base.tolist())],
        _gather(of_rows[~stacked], offsets[-1]),
        stacks,
        of_rows,
    )


def _distinct(key: Key, parts: list[_Part], twins: dict[tuple[Key, int], int]) -> list[_Part]:
    """The parts without replicas of earlier ones."""
    found: dict[object, _Part] = {}
    for part in parts:
        found.setdefault(_place(key, part, twins), part)
    return list(found.values())


def _place(key: Key, part: _Part, twins: dict[tuple[Key, int], int]) -> object:
    """What is equal for replicas alone."""
    layout = part.info.layout
    of_parameter = plain_kind(part.info.kind) in PARAMETER_KINDS
    if layout is None:
        return twins.get((key, part.record), part.record) if of_parameter else part.record
    own = twins.get((key, part.record), part.record)
    place = tuple(
        own if placement == UNKNOWN else axis.coordinate
        for axis, placement in zip(layout.axes, layout.placements, strict=True)
        if placement != REPLICATE
    )
    # Of several meshes, each says where the others are; a single one may be one of many.
    of_mesh = None if of_parameter or len(layout.meshes) > 1 else layout.meshes[0].first
    return of_mesh, place


def _placed(infos: Sequence[SiteInfo]) -> tuple[SiteInfo, list[Int64]]:
    """The whole site of some parts, and the channels of the whole that each part has."""
    first = infos[0]
    dim, shape = first.channel_dim, _shape(infos)
    if dim is not None and dim < 0:
        dim += len(first.shape)
    if any(info.merged for info in infos):
        places = [np.zeros(info.channels, np.int64) for info in infos]
        most = max(info.merged or info.channels for info in infos)
        whole = first._replace(channels=1, channel_dim=None, shape=shape, layout=None, merged=most)
        return whole, places
    channels, places = 0, []
    cut = False
    for info in infos:
        found = None if dim is None or info.layout is None else info.layout.channels(dim)
        if dim is not None and _is_batch(info.layout, dim):  # parts one after the other
            found = np.arange(channels, channels + info.channels)
        cut = cut or found is not None
        places.append(np.arange(info.channels) if found is None else found)
        channels = max(channels, int(places[-1].max(initial=-1)) + 1)
    if cut and dim is not None and dim < len(shape):
        channels = max(channels, shape[dim])  # also those of ranks that did not watch
    fits = all(len(place) == info.channels for place, info in zip(places, infos, strict=True))
    if not fits or not (cut or len({info.channels for info in infos}) == 1):
        # Which channels are the same is not known: the tensor is one channel.
        places = [np.zeros(info.channels, np.int64) for info in infos]
        return first._replace(channels=1, channel_dim=None, shape=(), layout=None), places
    return first._replace(channels=channels, shape=shape, layout=None), places


def _is_batch(layout: Layout | None, dim: int) -> bool:
    """Whether a plain tensor is a part of a batch along dimension `dim`."""
    return layout is not None and layout.cuts is None and bool(_along(layout, dim))


def _along(layout: Layout, dim: int) -> list[Axis]:
    """The axes that cut dimension `dim`."""
    places = zip(layout.axes, layout.placements, strict=True)
    return [axis for axis, placement in places if shard_dim(placement) == dim]


def _shape(infos: Sequence[SiteInfo]) -> tuple[int, ...]:
    """The shape of the whole tensor, the sizes of parts of a batch added up; () if unknown."""
    first = infos[0]
    if len({len(info.shape) for info in infos}) > 1:
        return ()
    whole = None if first.layout is None else first.layout.global_shape
    shape = list(first.shape if whole is None else whole)
    for dim in range(len(shape)):
        sizes: dict[object, int] = {}
        for i, info in enumerate(infos):
            layout = info.layout
            if layout is None:
                of_batch = dim == 0 and plain_kind(info.kind) not in PARAMETER_KINDS
                sizes[i if of_batch else 0] = info.shape[dim]
            elif whole is None or whole[dim] == -1:
                sizes[tuple(axis.coordinate for axis in _along(layout, dim))] = info.shape[dim]
        if sizes:
            shape[dim] = -1 if -1 in sizes.values() else sum(sizes.values())
    return tuple(shape)
