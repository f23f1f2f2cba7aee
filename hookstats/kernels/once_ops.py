"""Operators that do nothing in a backward, where a checkpoint runs a graph a second time.

If a checkpoint runs a whole compiled graph, the backward runs that graph again. It must be the same
graph, since the checkpoint compares what both runs save. The operator therefore decides when it
runs, which costs some microseconds in Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hookstats._torch import current_graph_task_id
from hookstats.kernels.ops import update_


def _update_once(x: Tensor, *arguments: Any, **options: Any) -> None:
    if current_graph_task_id() == -1:
        update_(x, *arguments, **options)


def _count_once(calls: Tensor, recomputed: Tensor | None = None) -> None:
    counter = calls if current_graph_task_id() == -1 else recomputed
    if counter is not None:
        counter.data.add_(1)  # a checkpoint in a graph checks the versions of its arguments


def _fake(*args: object, **kwargs: object) -> None:
    """Nothing to infer: the operators return nothing and change no shape."""


_library = torch.library.Library("hookstats", "FRAGMENT")  # type: ignore[no-untyped-call]
_KERNELS = {
    "update_once_(Tensor x, int? channel_dim, Tensor(a!) moments, Tensor(b!) tallies, "
    "Tensor(c!)? counts=None, Tensor? bins=None, "
    "Tensor(d!)? channel_counts=None, Tensor? channel_bins=None, "
    "Tensor? sampling=None, Tensor? mask=None) -> ()": _update_once,
    "count_once_(Tensor(a!) calls, Tensor(b!)? recomputed=None) -> ()": _count_once,
}
for _schema, _kernel in _KERNELS.items():
    _name = _library.define(_schema)  # type: ignore[no-untyped-call]
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    _library.impl(_name, torch.library.fallthrough_kernel, "Autograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"hookstats::{_name}", _fake, lib=_library)

update_once_ = torch.ops.hookstats.update_once_.default
"""`ops.update_`, which does nothing while a backward runs."""

count_once_ = torch.ops.hookstats.count_once_.default
"""count_once_(calls, recomputed=None) -> None: adds one to `calls`, int64 [], or to `recomputed`
while a backward runs."""
