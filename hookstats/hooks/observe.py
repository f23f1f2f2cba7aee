"""observe(): a site where a model has no module, such as the queries after their rotation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import FunctionType, MethodType
from typing import NamedTuple, TypeVar, overload

import torch
from torch import nn
from torch.compiler import is_dynamo_compiling
from torch.utils.hooks import RemovableHandle

from hookstats._torch import mark_constant
from hookstats.hooks.channels import ChannelDim, check_channel_dim
from hookstats.hooks.dynamo import reset_compiled
from hookstats.hooks.readable import detour, reporting
from hookstats.stats.messages import say

_Tensor = TypeVar("_Tensor", bound=torch.Tensor)
_Value = TypeVar("_Value")


class Point(nn.Module):
    """Returns what it is given. Watches set hooks on it as on any module."""

    def __init__(self, channel_dim: ChannelDim) -> None:
        super().__init__()
        self.channel_dim = channel_dim
        self.seen: set[int] = set()
        """The watches, by their keys in `_watches`, that were offered this point."""
        self.failures: dict[str, str] = {}
        """Why its quantity is not computed any more; empty while it is."""

    def forward(self, value: _Value) -> _Value:
        """Its argument, the very object."""
        return value


Attach = Callable[[str, Point], None]
"""Has a watch set hooks on the point of this name."""


class _Listener(NamedTuple):
    attach: Attach
    is_observing: Callable[[], bool]


_watches: OrderedDict[int, _Listener] = OrderedDict()
_points: dict[str, Point] = {}
_FUNCTIONS = FunctionType, MethodType, partial  # dynamo knows not of everything if it is callable
_lock = threading.Lock()


# First, as pyright takes what a module returns, which is Any, for the first that fits.
@overload
def observe(name: str, value: _Tensor, channel_dim: ChannelDim = "auto") -> _Tensor: ...
@overload
def observe(name: str, value: Callable[[], object], channel_dim: ChannelDim = "auto") -> None: ...
@overload
def observe(name: str, value: _Value, channel_dim: ChannelDim = "auto") -> _Value: ...
def observe(name: str, value: _Value, channel_dim: ChannelDim = "auto") -> _Value | None:
    """Record a tensor that no module returns, and its gradient, in every open `watch`.

        q = hs.observe(f"layers.{i}.q", rotate(q), channel_dim=1)

    Returns `value`, the same object. The site has this name and the kinds "output" and
    "grad_output", like a module's: phases, masks, checkpoints, DTensors and compiled code work as
    for modules. If the model has a module of this name, the site's name gets a "'" at the end.
    `include` and `exclude` of a watch apply to these names. Without a watch, the call costs one
    dictionary lookup.

    A function without arguments is a quantity: it is called only in recorded steps, without
    gradients, and what it returns is recorded.

        hs.observe("router.entropy", lambda: entropy(probabilities), channel_dim=None)

    It must change nothing and draw no random numbers. Compiled code leaves it out, and a line says
    so. After an error in it, a RuntimeWarning, it is not called any more.

    Args:
        name: for the statistics, such as "layers.0.q". Calls of one name in a step are merged.
        value: a tensor, or tuples, lists and mappings of tensors; or a function that returns these.
        channel_dim: the dimension of the channels, None for the whole tensor, or "auto": 1 of
            tensors with 4 or 5 dimensions, and the last one of others. The first call of a name
            decides.

    Returns:
        `value`; None where it is a function.

    Raises:
        ValueError: the name is no string or empty, or `channel_dim` is something else.
    """
    if isinstance(value, _FUNCTIONS):
        _compute(name, value, channel_dim)
        return None
    if not _watches:
        return value
    _offer(name, channel_dim)
    result: _Value = _points[name](value)
    return result


def _compute(name: str, quantity: Callable[[], object], channel_dim: ChannelDim) -> None:
    """Have the watches that observe now record what `quantity` returns."""
    if not _watches:
        return
    if is_dynamo_compiling():
        _leave_out(name)
        return
    _offer(name, channel_dim)
    point = _points[name]
    if point.failures or detour() is not None:
        return
    if not any(listener.is_observing() for listener in _watches.values()):
        return
    value: object = None
    with reporting(point.failures, f"computing {name!r}", "; it is left out"):
        value = quantity()
    if not point.failures:
        point(value)


def _leave_out(name: str) -> None:
    """Say, while dynamo traces, that compiled code has no quantity of this name."""
    say(f"{name!r} is not computed in compiled code")


mark_constant(_leave_out)


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
        for key, listener in list(_watches.items()):
            if key not in point.seen:
                point.seen.add(key)
                listener.attach(name, point)


mark_constant(_offer)


def listen(attach: Attach, is_observing: Callable[[], bool]) -> RemovableHandle:
    """Offer every point to `attach` at its next call, until the handle is removed.

    is_observing: whether the watch takes calls of modules now.
    """
    handle = RemovableHandle(_watches)
    _watches[handle.id] = _Listener(attach, is_observing)
    if _points:
        reset_compiled({Point})
    return handle
