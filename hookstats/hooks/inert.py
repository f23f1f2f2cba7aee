"""Hook: the base of all hooks, and what becomes of hooks in a copy of the model: nothing.

A deep copy has no hook of hookstats. A pickle cannot leave one out, since the dictionary in which
the hook is writes the entry; there the hook becomes a callable of the standard library that does
nothing, so that the pickle loads where hookstats is not installed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch import nn

_DOES_NOTHING: tuple[Callable[..., Any], tuple[object, ...]] = getattr, (nullcontext(), "__exit__")
"""What unpickles to a callable that takes any arguments, and returns None."""


class Inert:
    """Takes a hook's place in a deep copy of the model until the copy is complete."""

    def __call__(self, *args: object, **kwargs: object) -> None:
        pass

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _DOES_NOTHING


class Hook:
    """A hook that belongs to one model, and to no copy or pickle of the model."""

    __slots__ = ()

    def __deepcopy__(self, memo: dict[Any, Any]) -> Inert:
        # The module whose hooks are copied now is the last one whose copy was begun.
        for copied in reversed(memo.values()):
            if issubclass(type(copied), nn.Module):
                memo.setdefault("hookstats", _Sweep()).modules.append(copied)
                break
        return Inert()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _DOES_NOTHING


class _Sweep:
    """Removes what is inert from copied modules when the memo of their deep copy ends."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []

    def __del__(self) -> None:
        for module in self.modules:
            for hooks, marks in (
                ("_forward_pre_hooks", ("_forward_pre_hooks_with_kwargs",)),
                ("_forward_hooks", ("_forward_hooks_with_kwargs", "_forward_hooks_always_called")),
            ):
                found = module.__dict__.get(hooks, {})
                for key in [key for key, hook in found.items() if type(hook) is Inert]:
                    for name in (hooks, *marks):
                        module.__dict__.get(name, {}).pop(key, None)
