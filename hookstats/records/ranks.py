"""Merger: the records of several ranks as the record of the whole model.

Where the sites of each rank go, `place` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import is_not
from typing import NamedTuple

import numpy as np

from hookstats.records.keys import PARAMETER_KINDS, InOrder, Key, plain_kind
from hookstats.records.layout import REPLICATE, UNKNOWN, Layout, shard_dim
from hookstats.records.merge import merged
from hookstats.records.record import SiteInfo, StepRecord
from hookstats.records.sparse import Int64
from hookstats.stats.bins import is_sampled
from hookstats.stats.merge import offsets_of

Sites = tuple[SiteInfo, ...]


class Target(NamedTuple):
    """A site of the whole model."""

    info: SiteInfo
    grows: bool
    """Whether the channels of its parts are put one after the other, as they come; `info` has as
    many channels as all of them."""
    is_one: bool
    """Whether it has one channel, as those of its parts cannot be told apart."""


@dataclass
class Placed:
    """Where the sites of one record go."""

    targets: Int64
    """int64 [S]: the number of the target; -1 for replicas of what another record has."""
    channels: dict[int, Int64] = field(default_factory=dict)
    """By site, which channels of the whole it has, where these are not the first ones."""
    unknown: list[tuple[int, object]] = field(default_factory=list)
    """Sites that are replicas if an earlier one has the same values and the same of this."""


class Placement(NamedTuple):
    """Where the sites of some records go."""

    targets: list[Target]
    offsets: Int64
    """int64 [targets + 1]: the rows of each."""
    records: list[Placed]


class _Part(NamedTuple):
    record: int
    site: int
    info: SiteInfo


def place(records: Sequence[Sites]) -> Placement:
    """Where the sites of records go, which are in order of rank.

    Targets are in order of execution.
    """
    keys = InOrder([(site.name, site.kind) for site in sites] for sites in records)
    found: dict[Key, list[_Part]] = {key: [] for key in keys}
    for record, sites in enumerate(records):
        for site, info in enumerate(sites):
            found[info.name, info.kind].append(_Part(record, site, info))
    placed = [Placed(np.full(len(sites), -1, np.int64)) for sites in records]
    targets = [_add(parts, number, placed) for number, parts in enumerate(found.values())]
    offsets = offsets_of([target.info.channels for target in targets])
    return Placement(targets, offsets, placed)


def _add(parts: list[_Part], number: int, placed: list[Placed]) -> Target:
    of_parameter = plain_kind(parts[0].info.kind) in PARAMETER_KINDS
    kept: list[_Part] = []
    seen: set[object] = set()
    for part in parts:
        known = _known(part, of_parameter)
        if _is_unknown(part.info, of_parameter):
            placed[part.record].unknown.append((part.site, known))
        elif known in seen:
            continue
        else:
            seen.add(known)
        kept.append(part)
        placed[part.record].targets[part.site] = number
    target, channels = _target([part.info for part in kept], of_parameter)
    for part, own in zip(kept, channels, strict=True):
        if own is not None:
            placed[part.record].channels[part.site] = own
    return target


def _is_unknown(info: SiteInfo, of_parameter: bool) -> bool:
    """Whether only the values tell of what the part is a replica."""
    if info.layout is None:
        return of_parameter
    return UNKNOWN in info.layout.placements


def _known(part: _Part, of_parameter: bool) -> object:
    """What is equal for replicas, and, but for unknown parts, for replicas alone."""
    layout = part.info.layout
    if layout is None:
        return None if of_parameter else part.record
    return _part_of(layout, of_parameter)


# Many sites have equal layouts, which are the same objects where they were read.
_of_layouts = lru_cache(maxsize=1 << 12)


@_of_layouts
def _part_of(layout: Layout, of_parameter: bool) -> object:
    """What is equal for ranks that have the same part."""
    coordinates = tuple(
        axis.coordinate
        for axis, placement in zip(layout.axes, layout.placements, strict=True)
        if placement not in (REPLICATE, UNKNOWN)
    )
    # Of several meshes, each says where the others are; a single one may be one of many.
    of_mesh = None if of_parameter or len(layout.meshes) > 1 else layout.meshes[0].first
    return of_mesh, coordinates


@_of_layouts
def _channels(layout: Layout, dim: int, expected: int) -> Int64 | None:
    """Which channels a part has; none if these are not as many as expected, or no indices, as in a
    damaged run, where they may be more than memory can hold."""
    number = layout.number(dim)
    found = layout.channels(dim) if number in (None, expected) else np.zeros(0, np.int64)
    return found if found is None or found.min(initial=0) >= 0 else np.zeros(0, np.int64)


@_of_layouts
def _along(layout: Layout, dim: int) -> tuple[int, ...]:
    """The coordinates of a rank on the axes that cut dimension `dim`."""
    places = zip(layout.axes, layout.placements, strict=True)
    return tuple(axis.coordinate for axis, placement in places if shard_dim(placement) == dim)


def _target(infos: Sequence[SiteInfo], of_parameter: bool) -> tuple[Target, list[Int64 | None]]:
    """The whole site of some parts, and the channels of the whole that each part has; None: the
    first ones, or those after the parts before."""
    first = infos[0]
    dim, shape = first.channel_dim, _shape(infos, of_parameter)
    if dim is not None and dim < 0:
        dim += len(first.shape)
    whole = first._replace(shape=shape, layout=None)
    if dim is not None and all(_is_batch(info.layout, dim) for info in infos):
        channels = sum(info.channels for info in infos)
        return Target(whole._replace(channels=channels), grows=True, is_one=False), [None] * len(
            infos
        )
    found = [
        None if dim is None or info.layout is None else _channels(info.layout, dim, info.channels)
        for info in infos
    ]
    is_cut = any(own is not None for own in found)
    fits = all(
        own is None or len(own) == info.channels for own, info in zip(found, infos, strict=True)
    )
    if not fits or not (is_cut or len({info.channels for info in infos}) == 1):
        # Which channels are the same is not known: the tensor is one channel.
        one = first._replace(channels=1, channel_dim=None, shape=(), layout=None)
        return Target(one, grows=False, is_one=True), [None] * len(infos)
    channels = max(
        info.channels if own is None else int(own.max(initial=-1)) + 1
        for own, info in zip(found, infos, strict=True)
    )
    if is_cut and dim is not None and dim < len(shape):
        channels = max(channels, shape[dim])  # also those of ranks that did not watch
    return Target(whole._replace(channels=channels), grows=False, is_one=False), found


def _is_batch(layout: Layout | None, dim: int) -> bool:
    """Whether a plain tensor is a part of a batch along dimension `dim`."""
    return layout is not None and layout.cuts is None and bool(_along(layout, dim))


def _shape(infos: Sequence[SiteInfo], of_parameter: bool) -> tuple[int, ...]:
    """The shape of the whole tensor, the sizes of parts of a batch added up; () if unknown."""
    first = infos[0]
    if first.layout is None and all(info is first for info in infos):  # mostly, without layouts
        if of_parameter or not first.shape or first.shape[0] == -1:
            return first.shape
        return (first.shape[0] * len(infos), *first.shape[1:])
    if len({len(info.shape) for info in infos}) > 1:
        return ()
    whole = None if first.layout is None else first.layout.global_shape
    shape = list(first.shape if whole is None else whole)
    some_are_whole = any(info.layout is None for info in infos)
    for dim in range(len(shape)):
        if whole is not None and whole[dim] != -1 and not some_are_whole:
            continue
        sizes: dict[object, int] = {}
        for i, info in enumerate(infos):
            layout = info.layout
            if layout is None:
                of_batch = dim == 0 and not of_parameter
                sizes[i if of_batch else 0] = info.shape[dim]
            elif whole is None or whole[dim] == -1:
                sizes[_along(layout, dim)] = info.shape[dim]
        if sizes:
            shape[dim] = -1 if -1 in sizes.values() else sum(sizes.values())
    return tuple(shape)


class Merger:
    """Makes the record of the whole model from those of some ranks, of one step.

    What the layouts of the sites say decides: parts along the channels are put side by side, other
    parts are merged channel by channel, and of replicas the one of the lowest rank stands for all.
    Without a layout, tensors of modules are parts of a batch, and parameters whose statistics are
    equal to the bit are replicas. `observed` is the greatest number of calls of any rank, as a call
    on all ranks is one call of the whole model. The result is the same to the bit in every reading;
    it has channels where all ranks have theirs.

    What follows from the sites is kept for the next step, whose sites mostly are the same objects.
    """

    def __init__(self) -> None:
        self._sites: tuple[Sites, ...] = ()
        self._placement = place(())

    def __call__(self, records: Sequence[StepRecord]) -> StepRecord:
        """records: one or more, in order of rank."""
        sites = tuple(record.sites for record in records)
        if len(sites) != len(self._sites) or any(map(is_not, sites, self._sites)):
            self._sites, self._placement = sites, place(sites)
        return _merged(records, self._placement)


def _merged(records: Sequence[StepRecord], placement: Placement) -> StepRecord:
    first = records[0]
    seen: dict[tuple[int, bytes], int] = {}
    known: set[tuple[int, object, int]] = set()
    targets = [
        _without_replicas(i, record, placed, seen, known)
        for i, (record, placed) in enumerate(zip(records, placement.records, strict=True))
    ]
    count = len(placement.targets)
    observed = np.zeros(count, np.int64)
    for record, chosen in zip(records, targets, strict=True):
        kept = chosen >= 0
        observed[chosen[kept]] = np.maximum(observed[chosen[kept]], record.observed[kept])
    tensors = merged(
        [record.tensors for record in records],
        np.concatenate(targets),
        count,
        sampled=is_sampled(first.bins),
    )
    sites, rows = _rows(records, targets, placement)
    channels = [record.channels for record in records if record.channels is not None]
    return StepRecord(
        step=first.step,
        rank=None,
        sites=sites,
        observed=observed,
        tensors=tensors,
        channels=None
        if len(channels) < len(records)
        else merged(
            channels,
            np.concatenate(rows),
            sum([site.channels for site in sites]),
            sampled=is_sampled(first.channel_bins),
        ),
        bins=first.bins,
        channel_bins=first.channel_bins,
        unread=tuple(dict.fromkeys(name for record in records for name in record.unread)),
    )


def _without_replicas(
    number: int,
    record: StepRecord,
    placed: Placed,
    seen: dict[tuple[int, bytes], int],
    known: set[tuple[int, object, int]],
) -> Int64:
    """The targets of the sites; -1 for those whose values an earlier rank had.

    seen: the first record by target and values; known: what was seen so far of each.
    """
    if not placed.unknown:
        return placed.targets
    targets: Int64 = placed.targets.copy()
    moments, tallies, _ = record.tensors
    for site, what in placed.unknown:
        values = moments[:, site].tobytes() + tallies[:, site].tobytes()
        target = int(targets[site])
        first = seen.setdefault((target, values), number)
        if (target, what, first) in known:
            targets[site] = -1
        known.add((target, what, first))
    return targets


def _rows(
    records: Sequence[StepRecord], targets: Sequence[Int64], placement: Placement
) -> tuple[Sites, list[Int64]]:
    """The sites of the whole, and for each record the row of the whole of each of its channels, -1
    for none."""
    infos = [target.info for target in placement.targets]
    grows = np.array([target.grows for target in placement.targets], bool)
    is_one = np.array([target.is_one for target in placement.targets], bool)
    widths = [np.array([s.channels for s in record.sites], np.int64) for record in records]
    before = [np.zeros(len(width), np.int64) for width in widths]  # channels of ranks before
    filled = np.zeros(len(infos), np.int64)
    for width, chosen, start in zip(widths, targets, before, strict=True):
        growing = (chosen >= 0) & grows[chosen] if len(infos) else chosen >= 0
        for site in np.flatnonzero(growing).tolist():
            start[site] = filled[chosen[site]]
            filled[chosen[site]] += width[site]
    # Fewer than all parts have together where replicas were among them.
    infos = [
        info._replace(channels=int(n)) if more and n != info.channels else info
        for info, n, more in zip(infos, filled.tolist(), grows.tolist(), strict=True)
    ]
    offsets = offsets_of([info.channels for info in infos])
    rows = []
    for placed, width, chosen, start in zip(
        placement.records, widths, targets, before, strict=True
    ):
        begins = offsets_of(width)
        first = offsets[chosen] + start
        row = np.arange(begins[-1]) + np.repeat(first - begins[:-1], width)
        for site, channels in placed.channels.items():
            if chosen[site] >= 0:
                row[begins[site] : begins[site + 1]] = offsets[chosen[site]] + channels
        one = np.repeat(is_one[chosen] & (chosen >= 0), width) if len(infos) else row < 0
        row = np.where(one, np.repeat(first, width), row)
        rows.append(np.where(np.repeat(chosen < 0, width), -1, row))
    return tuple(infos), rows
