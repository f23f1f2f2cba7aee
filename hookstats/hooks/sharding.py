"""Sharding: how the tensors of a model are spread over ranks, as far as one rank can see."""

from __future__ import annotations

import gc
import math
import sys
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from hookstats._torch import (
    Placed,
    batch_groups,
    is_dtensor,
    is_flattened,
    origin,
    placed,
)
from hookstats.records.keys import PARAMETER_KINDS, plain_kind
from hookstats.records.layout import REPLICATE, UNKNOWN, Axis, Cut, Layout, Mesh, cuts_of
from hookstats.records.sparse import Int64


class _MeshAxis(NamedTuple):
    """An axis of a mesh, with the ranks along it, of which this rank is one."""

    axis: Axis
    ranks: tuple[int, ...]
    values: str
    """The placement of a plain tensor of a module."""
    parameters: str
    """The placement of a plain parameter and of its gradient."""
    flat: str
    """The placement of a parameter that FSDP1 flattened."""


class _Known(NamedTuple):
    """What a DTensor says of itself."""

    mesh: Mesh
    ranks: list[tuple[int, ...]]
    """Those along each axis of the mesh."""
    placements: tuple[str, ...]
    shape: tuple[int, ...]
    cuts: tuple[Cut, ...] | None


class Sharding:
    """Says of each tensor of a model which part of the whole it is. Nothing communicates.

    A DTensor says so itself, and so does the graph of what was computed element by element from the
    local part of one. Other tensors of modules are parts of the batch along the dimensions over
    which DDP and FSDP spread it, and other parameters are replicas there. Along the dimensions of
    DTensors that are parameters, such as those of tensor parallelism, nothing is known of plain
    tensors.
    """

    def __init__(self, models: Iterable[nn.Module], mesh: Any = None) -> None:
        """mesh: a DeviceMesh; see `watch`."""
        self._models = [weakref.ref(model) for model in models]
        self._mesh = mesh
        self._mesh_axes: list[_MeshAxis] | None = None
        self._around: list[_MeshAxis] = []  # of a wrapper around the models

    def layout(self, kind: str, tensor: Tensor) -> Layout | None:
        """The layout of a tensor of this kind; None if nothing is known."""
        if not _are_ranks():
            return None
        if is_dtensor(tensor):
            return self.layout_of(kind, tuple(tensor.shape), _of_dtensor(placed(tensor), None))
        source = None if plain_kind(kind) in PARAMETER_KINDS else origin(tensor)
        known = None if source is None else _of_dtensor(source, tuple(tensor.shape))
        return self.layout_of(kind, tuple(tensor.shape), known, flat=is_flattened(tensor))

    def traced_layout(
        self, kind: str, shape: tuple[int, ...], found: Placed | None
    ) -> Layout | None:
        """The layout of a tensor that a compiled graph will have; `found`: of a DTensor."""
        return self.layout_of(kind, shape, None if found is None else _of_dtensor(found, None))

    def layout_of(
        self, kind: str, local: tuple[int, ...], known: _Known | None, *, flat: bool = False
    ) -> Layout | None:
        """The layout of a tensor of this shape; `flat`: FSDP1 flattened it."""
        if not _are_ranks():
            return None
        if self._mesh_axes is None:  # a model may be sharded after the watch, before its tensors
            self._mesh_axes = list(self._find())
        of_parameter = plain_kind(kind) in PARAMETER_KINDS
        mesh_axes = [
            each for each in self._mesh_axes if known is None or each.ranks not in known.ranks
        ]
        if known is None and not mesh_axes:
            return None
        if not of_parameter:
            placements = [each.values for each in mesh_axes]
        elif flat:
            placements = [each.flat for each in mesh_axes]
        else:
            placements = [each.parameters for each in mesh_axes]
        meshes = [Mesh((each.axis,), each.ranks[0]) for each in mesh_axes]
        shape: tuple[int, ...] | None = local if known is None else known.shape
        if flat or UNKNOWN in placements:
            shape = None
        elif shape:
            cut = {int(text[6:-1]) for text in placements if text != REPLICATE}
            shape = tuple(-1 if dim in cut else size for dim, size in enumerate(shape))
        if known is None:
            whole = all(text == REPLICATE for text in placements)
            return Layout(tuple(meshes), tuple(placements), shape, () if whole else None)
        return Layout((known.mesh, *meshes), (*known.placements, *placements), shape, known.cuts)

    @property
    def batches(self) -> int | None:
        """How many parts of the batch there are, on a rank each; None if no spread is seen. May
        look at all objects of the process."""
        sizes = [len(each.ranks) for each in self._find() if each.parameters == REPLICATE]
        return math.prod(sizes) if sizes else None

    def _find(self) -> Iterator[_MeshAxis]:
        if not _are_ranks():
            return
        if torch.distributed.get_world_size() < 2:
            return
        models = [model for model in (each() for each in self._models) if model is not None]
        seen = set()
        given = [] if self._mesh is None else list(_of_mesh(self._mesh))
        wrapped = self._of_wrappers(models)
        of_parameters = (each for model in models for each in _of_parameters(model))
        for each in (*given, *wrapped, *of_parameters):
            if len(each.ranks) > 1 and each.ranks not in seen:
                seen.add(each.ranks)
                yield each

    def _of_wrappers(self, models: Sequence[nn.Module]) -> list[_MeshAxis]:
        """The mesh axes over which the outermost wrapper in a model, or else around it, spreads
        batches.

        Trainers wrap the model themselves, and give callbacks what is within.
        """
        for model in models:
            if found := list(_of_outermost(model.modules())):
                return found
        if not self._around:
            self._around = _of_surrounding(models)
        return self._around


def _are_ranks() -> bool:
    """Whether this process is one of several."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def _of_mesh(mesh: Any) -> Iterator[_MeshAxis]:
    for axis, ranks in _axes(mesh):
        if axis.name.startswith("pp"):
            continue  # stages have other modules
        if axis.name.startswith("tp"):
            yield _MeshAxis(axis, ranks, UNKNOWN, UNKNOWN, UNKNOWN)
        elif axis.name.startswith("ep"):
            yield _MeshAxis(axis, ranks, "Shard(0)", UNKNOWN, UNKNOWN)
        else:
            values = "Shard(1)" if axis.name.startswith(("cp", "sp")) else "Shard(0)"
            yield _MeshAxis(axis, ranks, values, REPLICATE, UNKNOWN)


def _of_surrounding(models: Sequence[nn.Module]) -> list[_MeshAxis]:
    """The mesh axes of the outermost wrapper around any of the models.

    Of several that are not within each other, as where an old one is still alive, the one over most
    ranks counts, and of these, the one whose ranks are closest together: on all ranks the same.
    """
    wanted = set(map(id, models))
    found: list[tuple[nn.Module, set[int], list[_MeshAxis]]] = []
    for wrapper in batch_wrappers():
        # Wrappers may be half made, or of a group that was left.
        with suppress(AttributeError, KeyError, RuntimeError, ValueError):
            parts = {id(part) for part in wrapper.modules() if part is not wrapper}
            mesh_axes = [] if parts.isdisjoint(wanted) else list(_of_outermost([wrapper]))
            if mesh_axes:
                found.append((wrapper, parts, mesh_axes))
    inner = set[int]().union(*(parts for _, parts, _ in found))
    return min(
        (mesh_axes for one, _, mesh_axes in found if id(one) not in inner), key=_extent, default=[]
    )


def batch_wrappers() -> list[nn.Module]:
    """The wrappers of DDP and FSDP1 among all objects of the process, in any order."""
    ddp, fsdp = nn.parallel.DistributedDataParallel, sys.modules.get("torch.distributed.fsdp")
    kinds: list[type] = [ddp, getattr(fsdp, "FullyShardedDataParallel", ddp)]
    for kind in kinds:  # which grows
        kinds += type.__subclasses__(kind)
    # Objects refer to their class: this search passes over all objects in C.
    return [one for one in gc.get_referrers(*kinds) if any(type(one) is kind for kind in kinds)]


def _extent(mesh_axes: Sequence[_MeshAxis]) -> tuple[int, list[tuple[int, ...]]]:
    """What is least of the mesh axes over most ranks, and of these, over those closest together."""
    distances = [tuple(rank - each.ranks[0] for rank in each.ranks) for each in mesh_axes]
    return -math.prod(map(len, distances)), distances


def _of_outermost(modules: Iterable[nn.Module]) -> Iterator[_MeshAxis]:
    """The mesh axes of the first of these modules that spreads batches."""
    for module in modules:
        groups = batch_groups(module)
        for name, group in groups:
            if not name:
                for axis, ranks in _axes(group):
                    yield _MeshAxis(axis, ranks, "Shard(0)", REPLICATE, REPLICATE)
                continue
            ranks = tuple(torch.distributed.get_process_group_ranks(group))
            axis = Axis(name, torch.distributed.get_rank(group), len(ranks))
            flat = "Shard(0)" if name == "dp_shard" else REPLICATE
            yield _MeshAxis(axis, ranks, "Shard(0)", REPLICATE, flat)
        if groups:
            return


def _of_parameters(model: nn.Module) -> Iterator[_MeshAxis]:
    for parameter in model.parameters():
        if is_dtensor(parameter):
            for axis, ranks in _axes(placed(parameter).mesh):
                yield _MeshAxis(axis, ranks, UNKNOWN, UNKNOWN, UNKNOWN)


@lru_cache(maxsize=64)
def _axes(mesh: Any) -> tuple[tuple[Axis, tuple[int, ...]], ...]:
    """The axes of a DeviceMesh, each with the ranks along it; none if this rank is not on it."""
    place = mesh.get_coordinate()
    if place is None:
        return ()
    names = mesh.mesh_dim_names or [f"dim{i}" for i in range(len(place))]
    groups = [mesh.get_group(i) for i in range(len(names))]
    ranks = map(torch.distributed.get_process_group_ranks, groups)
    return tuple(
        (Axis(name, int(at), len(each)), tuple(each))
        for name, at, each in zip(names, place, ranks, strict=True)
    )


@lru_cache(maxsize=64)
def _first(mesh: Any) -> int:
    return int(mesh.mesh.min())


def _of_dtensor(found: Placed, local: tuple[int, ...] | None) -> _Known | None:
    """What a DTensor says of itself, or of its local part, a plain tensor of the shape `local`."""
    axes = _axes(found.mesh)
    if not axes:
        return None
    indices: dict[int, Int64] = {}
    exact = True
    for (axis, _), placement in zip(axes, found.placements, strict=True):
        if type(placement).__name__ in ("Shard", "_StridedShard"):
            whole = indices.get(placement.dim, np.arange(found.shape[placement.dim]))
            indices[placement.dim] = _part(placement, whole, axis)
        elif not placement.is_replicate():
            exact = False
    if local is not None:
        sizes = tuple(len(indices[d]) if d in indices else n for d, n in enumerate(found.shape))
        if sizes != local or not exact:
            return None  # it was computed in another way
    cuts = tuple(cut for dim, each in sorted(indices.items()) for cut in cuts_of(dim, each))
    return _Known(
        Mesh(tuple(axis for axis, _ in axes), _first(found.mesh)),
        [ranks for _, ranks in axes],
        tuple(map(_text, found.placements)),
        found.shape,
        cuts if exact else None,
    )


def _part(placement: Any, whole: Int64, axis: Axis) -> Int64:
    """The indices among `whole` that a rank has by Shard or _StridedShard, as DTensor cuts them."""
    pieces = _chunks(whole, int(getattr(placement, "split_factor", 1)))
    return np.concatenate([_chunks(piece, axis.size)[axis.coordinate] for piece in pieces])


def _chunks(whole: Int64, n: int) -> list[Int64]:
    """As torch.chunk, with empty chunks where there are too few indices."""
    size = -(-len(whole) // n)
    return [whole[i * size : (i + 1) * size] for i in range(n)]


def _text(placement: Any) -> str:
    name = type(placement).__name__
    if name == "_StridedShard":
        return f"{name}({placement.dim}, {placement.split_factor})"
    return f"{name}({placement.dim})" if name == "Shard" else name
