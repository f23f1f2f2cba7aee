"""unequal_replicas(): when ranks that should have the same parameters had other ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from hookstats.records.layout import parse_meshes, parse_placements
from hookstats.records.replicas import (
    CHECKSUM,
    UnequalReplicas,
    Value,
    first_unequal,
    part_of,
)

if TYPE_CHECKING:
    from hookstats.runs.run import Run

_COLUMNS = ("step", "kind", "site", "mesh", "placements", "max")


def unequal_replicas(run: Run) -> UnequalReplicas | None:
    """The first parameter of which a rank had other bits than its replicas; None if all agree.

    Reads the kind "checksum" of all ranks. Replicas are parameters under DDP, and parameters
    that HSDP and tensor parallelism keep on several ranks.

    Raises:
        ValueError: the run has no checksums of replicas.
    """
    values = [value for rank in run.ranks for value in _checksums(run.of_rank(rank), rank)]
    if not values:
        raise ValueError(
            f"{run.path} has no checksums of replicas: expected watch(kinds=('default', "
            "'checksum')) on several ranks"
        )
    return first_unequal(values)


def _checksums(run: Run, rank: int) -> Iterator[Value]:
    for table in run.batches(_COLUMNS):
        columns = (table.column(name).to_pylist() for name in _COLUMNS)
        for step, kind, name, mesh, placements, value in zip(*columns, strict=True):
            if kind == CHECKSUM and placements is not None:
                part = _part(mesh or "", placements)
                if part is not None:
                    yield step, name, part, rank, value


@lru_cache
def _part(mesh: str, placements: str) -> object:
    return part_of(parse_meshes(mesh), parse_placements(placements))
