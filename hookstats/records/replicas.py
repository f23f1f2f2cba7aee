"""UnequalReplicas: ranks that should have the same bits of a parameter, and do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from hookstats.records.layout import REPLICATE, UNKNOWN, Mesh
from hookstats.records.record import StepRecord
from hookstats.stats.state import MAX

CHECKSUM = "checksum"
"""The kind of the checksum of a parameter's bits."""


class UnequalReplicas(NamedTuple):
    """A parameter of which a rank has other bits than its replicas on other ranks."""

    step: int
    """The first recorded step that has it so."""
    name: str
    """The parameter, the first one in its step."""
    rank: int
    """The rank that differs from most others; of two, the greater one."""
    others: tuple[int, ...]
    """The ranks that have what most have."""

    def __str__(self) -> str:
        others = ", ".join(map(str, self.others))
        return f"step {self.step}: {self.name!r} on rank {self.rank} is not that of rank {others}"


Value = tuple[int, str, object, int, float]
"""A checksum: the step, the parameter, what is equal for replicas, the rank, the value."""


def part_of(meshes: Sequence[Mesh], placements: Sequence[str]) -> object:
    """What is equal for ranks that have the same part of a parameter; None where none is known to
    have the same."""
    if UNKNOWN in placements or REPLICATE not in placements:
        return None
    axes = [axis for mesh in meshes for axis in mesh.axes]
    firsts = tuple(mesh.first for mesh in meshes[:1] if len(meshes) == 1)
    places = zip(axes, placements, strict=True)
    return firsts, tuple(axis.coordinate for axis, placed in places if placed != REPLICATE)


def first_unequal(values: Iterable[Value]) -> UnequalReplicas | None:
    """The first of the checksums, which come in any order, that differ between replicas."""
    found: dict[tuple[int, str, object], dict[int, float]] = {}
    for step, name, part, rank, value in values:
        found.setdefault((step, name, part), {})[rank] = value
    unequal = [key for key, of_ranks in found.items() if len(set(of_ranks.values())) > 1]
    if not unequal:
        return None
    key = min(unequal, key=lambda key: key[0])
    of_ranks = dict(sorted(found[key].items()))
    usual = Counter(of_ranks.values()).most_common(1)[0][0]
    odd = next(rank for rank, value in of_ranks.items() if value != usual)
    others = tuple(rank for rank, value in of_ranks.items() if value == usual)
    return UnequalReplicas(key[0], key[1], odd, others)


def checksums(record: StepRecord) -> list[Value]:
    """The checksums of a rank's record that may have replicas."""
    values = record.tensors.moments[MAX]
    rank = record.rank or 0
    return [
        (record.step, site.name, part, rank, float(values[i]))
        for i, site in enumerate(record.sites)
        if site.kind == CHECKSUM and site.layout is not None
        if (part := part_of(site.layout.meshes, site.layout.placements)) is not None
    ]
