"""Adaptors for module hooks that take keyword arguments.

Torch calls the hooks that were set when a call of the module began. If one of them removes another,
torch still calls that other hook, but no longer with keyword arguments: it has forgotten that the
hook takes them. A removed hook is to do nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import nn

_Hook = TypeVar("_Hook")
_Result = TypeVar("_Result")


def before_call(
    hook: Callable[[_Hook, tuple[object, ...], Mapping[str, object]], _Result],
) -> Callable[..., _Result | None]:
    """The `__call__` of a forward pre-hook that does `hook(self, args, kwargs)`."""

    def __call__(
        self: _Hook,
        module: nn.Module,
        args: tuple[object, ...],
        kwargs: Mapping[str, object] | None = None,
    ) -> _Result | None:
        return None if kwargs is None else hook(self, args, kwargs)

    return __call__


def after_call(
    hook: Callable[[_Hook, tuple[object, ...], Mapping[str, object], Any], _Result],
) -> Callable[..., _Result | None]:
    """The `__call__` of a forward hook that does `hook(self, args, kwargs, output)`."""

    def __call__(
        self: _Hook, module: nn.Module, args: tuple[object, ...], *kwargs_and_output: Any
    ) -> _Result | None:
        return hook(self, args, *kwargs_and_output) if len(kwargs_and_output) == 2 else None

    return __call__
