"""Layout: which part of a tensor that is spread over ranks one rank has."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from hookstats.records.sparse import Int64

REPLICATE = "Replicate"
UNKNOWN = "Unknown"
"""The placement of a plain tensor on a dimension of a mesh that its values tell nothing of. Ranks
whose statistics are equal to the bit are taken for replicas, all others for parts."""


class Axis(NamedTuple):
    """One dimension of a device mesh, and where the rank is on it."""

    name: str
    coordinate: int
    size: int


class Mesh(NamedTuple):
    """A device mesh, as one of its ranks sees it."""

    axes: tuple[Axis, ...]
    first: int
    """The lowest rank of the mesh: it tells one mesh from another of the same dimensions."""


class Cut(NamedTuple):
    """Runs of indices of one dimension: `runs` runs of `length` indices, the first of them from
    `start` on, the others `stride` apart."""

    dim: int
    start: int
    length: int
    stride: int
    runs: int

    def indices(self) -> Int64:
        """int64 [runs * length]."""
        starts = self.start + self.stride * np.arange(self.runs, dtype=np.int64)
        return (starts[:, None] + np.arange(self.length)).reshape(-1)


class Layout(NamedTuple):
    """The place of a rank's tensor in the tensor of all ranks."""

    meshes: tuple[Mesh, ...]
    placements: tuple[str, ...]
    """One per axis of the meshes: "Shard(0)", "_StridedShard(0, 2)", "Replicate", "Unknown"."""
    global_shape: tuple[int, ...] | None
    """The shape of the whole; -1 for sizes that depend on other ranks' batches; None: unknown."""
    cuts: tuple[Cut, ...] | None
    """The indices that the rank has of each dimension that is cut, several for a dimension of which
    it has irregular runs; other dimensions are whole. None: unknown."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(axis for mesh in self.meshes for axis in mesh.axes)

    def number(self, dim: int) -> int | None:
        """How many indices the rank has of dimension `dim`; None if all or unknown."""
        cuts = [cut for cut in self.cuts or () if cut.dim == dim]
        return sum(max(0, cut.runs) * max(0, cut.length) for cut in cuts) if cuts else None

    def channels(self, dim: int) -> Int64 | None:
        """The global indices that the rank has of dimension `dim`; None if all or unknown."""
        cuts = [cut.indices() for cut in self.cuts or () if cut.dim == dim]
        return np.concatenate(cuts) if cuts else None


def shard_dim(placement: str) -> int | None:
    """The dimension that a placement cuts; None if it cuts none."""
    found = _SHARD.fullmatch(placement)
    return int(found[1]) if found else None


_SHARD = re.compile(r"_?\w*Shard\((\d+)(?:, \d+)?\)")


def cuts_of(dim: int, indices: Int64) -> tuple[Cut, ...]:
    """Ascending runs of indices of a dimension as few cuts."""
    if not len(indices):
        return (Cut(dim, 0, 0, 0, 1),)
    ends = np.flatnonzero(np.diff(indices) != 1) + 1
    starts = np.concatenate(([0], ends))
    lengths = np.diff(np.concatenate((starts, [len(indices)])))
    firsts = indices[starts]
    strides = np.diff(firsts)
    if (lengths == lengths[0]).all() and (strides == strides[:1]).all():
        stride = int(strides[0]) if len(strides) else 0
        return (Cut(dim, int(firsts[0]), int(lengths[0]), stride, len(starts)),)
    runs = zip(firsts.tolist(), lengths.tolist(), strict=True)
    return tuple(Cut(dim, first, length, 0, 1) for first, length in runs)


def mesh_text(meshes: tuple[Mesh, ...]) -> str:
    """Meshes as text: "dp:0/2,tp:1/4@0", several by semicolons."""
    return ";".join(",".join(map(_axis_text, mesh.axes)) + f"@{mesh.first}" for mesh in meshes)


def _axis_text(axis: Axis) -> str:
    name = re.sub(r"[^\w.-]", "_", axis.name)
    return f"{name}:{axis.coordinate}/{axis.size}"


def parse_meshes(text: str) -> tuple[Mesh, ...]:
    """The meshes of a `mesh_text`.

    Raises:
        ValueError: it is none.
    """
    meshes = []
    for part in text.split(";"):
        found = _MESH.fullmatch(part)
        if not found:
            raise ValueError(f"mesh = {text!r}: expected such as 'dp:0/2,tp:1/4@0'")
        axes = (_AXIS.fullmatch(axis) for axis in found[1].split(","))
        meshes.append(
            Mesh(tuple(Axis(a[1], int(a[2]), int(a[3])) for a in axes if a), int(found[2]))
        )
    return tuple(meshes)


_AXIS = re.compile(r"([\w.-]+):(\d+)/(\d+)")
_MESH = re.compile(r"([\w.-]+:\d+/\d+(?:,[\w.-]+:\d+/\d+)*)@(\d+)")


def placements_text(placements: tuple[str, ...]) -> str:
    """Placements as text, by commas."""
    return ",".join(placements)


def parse_placements(text: str) -> tuple[str, ...]:
    """The placements of a `placements_text`."""
    return tuple(re.split(r",(?! )", text))
