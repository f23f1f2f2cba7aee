"""place(): where the sites of several ranks go in the record of the whole model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hookstats.records.keys import PARAMETER_KINDS, InOrder, Key, plain_kind
from hookstats.records.layout import REPLICATE, UNKNOWN, Layout, shard_dim
from hookstats.records.record import SiteInfo
from hookstats.records.sparse import Int64

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
    """A rank's part of a site."""

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
    offsets = np.cumsum([0, *(target.info.channels for target in targets)], dtype=np.int64)
    return Placement(targets, offsets, placed)


def _add(parts: list[_Part], number: int, placed: list[Placed]) -> Target:
    """The target of the parts of one site."""
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
