"""observe(): a site where a model has no module, such as the queries after their rotation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats._torch import mark_constant
from hookstats.hooks.channels import ChannelDim, check_channel_dim
from hookstats.hooks.dynamo import reset_compiled

_Value = TypeVar("_Value")


class Point(nn.Module):
    """Returns what it is given. Watches set hooks on it as on any module."""

    def __init__(self, channel_dim: ChannelDim) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        self.seen: set[int] = set()
        """The watches, by their keys in `_watches`, that were offered this point."""

    def forward(self, value: _Value) -> _Value:
        """Its argument, the very object."""
        return value


Attach = Callable[[str, Point], None]
"""Has a watch set hooks on the point of this name."""

_watches: OrderedDict[int, Attach] = OrderedDict()
_points: dict[str, Point] = {}
_lock = threading.Lock()


def observe(name: str, value: _Value, channel_dim: ChannelDim = "auto") -> _Value:
    """Record a tensor that no module returns, and its gradient, in every open `watch`.

        q = hs.observe(f"layers.{i}.q", rotate(q), channel_dim=1)

    Returns `value`, the same object. The site has this name and the kinds "output" and
    "grad_output", like a module's: phases, masks, checkpoints, DTensors and compiled code work as
    for modules. If the model has a module of this name, the site's name gets a "'" at the end.
    `include` and `exclude` of a watch apply to these names. Without a watch, the call costs one
    dictionary lookup.

    Args:
        name: for the statistics, such as "layers.0.q". Calls of one name in a step are merged.
        value: a tensor, or tuples, lists and mappings of tensors.
        channel_dim: the dimension of the channels, None for the whole tensor, or "auto": 1 of
            tensors with 4 or 5 dimensions, and the last one of others. The first call of a name
            decides.

    Raises:
        ValueError: the name is no string or empty, or `channel_dim` is something else.
    """
    if not _watches:
        return value
    _offer(name, channel_dim)
    result: _Value = _points[name](value)
    return result


def _offer(name: str, channel_dim: ChannelDim) -> None:
    """Have the watches that have not seen the point of this name set their hooks.

    Dynamo runs this while it traces: the graph then has the hooks.
    """
    point = _points.get(name)
    if point is not None and point.seen.issuperset(_watches):
        return
    with _lock:
        if point is None:
            if not isinstance(name, str) or not name:
                raise ValueError(f"name = {name!r}: expected a text such as 'layers.0.q'")
            check_channel_dim(channel_dim)
            point = _points.setdefault(name, Point(channel_dim))
        for key, attach in list(_watches.items()):
            if key not in point.seen:
                point.seen.add(key)
                attach(name, point)


mark_constant(_offer)


def listen(attach: Attach) -> RemovableHandle:
    """Offer every point to `attach` at its next call, until the handle is removed."""
    handle = RemovableHandle(_watches)
    _watches[handle.id] = attach
    if _points:
        reset_compiled({Point})
    return handle
