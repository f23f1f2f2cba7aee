"""Presence: takes the hooks off modules for as long as nothing is to be recorded.

A module with any hook takes torch's longer way through `Module.__call__`, whatever the hook does:
about a microsecond per call, which is most of what a step costs that is not recorded.

- Only a hook that is alone among its module's hooks of its kind goes. Where others are, there is
  nothing to gain, and the order of all stays.
- Hooks that others set meanwhile stand behind the one that comes back, as if it had been there.
- Dynamo bakes into compiled code which hooks there are. So no hook goes once anything is compiled;
  if something was compiled in the meantime, it is compiled again, with the hooks.
- No hook of a step that is under way is missed: hooks come and go where steps end.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats._torch import has_compiled
from hookstats.hooks.dynamo import reset_compiled

_Hooks = OrderedDict[int, Callable[..., Any]]


class _Set:
    """A hook, and where it was set."""

    __slots__ = ("hook", "hooks", "is_away", "key")

    def __init__(self, hooks: _Hooks, key: int) -> None:
        self.hooks = weakref.ref(hooks)
        self.key = key
        self.hook = hooks[key]
        self.is_away = False


class Presence:
    """The hooks that a watch has set on modules; they are there at first.

    An interrupt may come at any line: the next call of `set` does what is left.
    """

    def __init__(self) -> None:
        self._known: list[_Set] = []
        self._types: set[type[nn.Module]] = set()
        self._there: bool | None = True  # None: an interrupt came

    def add(self, module: nn.Module, handles: Iterable[RemovableHandle]) -> None:
        """Have these hooks come and go, which were set on the module."""
        self._types.add(type(module))
        for handle in handles:
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                self._known.append(_Set(hooks, handle.id))

    def set(self, there: bool) -> None:
        """Have the hooks be there, or not where they may go."""
        if there is self._there:
            return
        self._there = None
        if there:
            if has_compiled() and any(one.is_away for one in self._known):
                reset_compiled(self._types)
            for one in self._known:
                _put_back(one)
        elif not has_compiled():
            for one in self._known:
                _take_away(one)
        self._there = there

    def end(self) -> None:
        """Have no hook come back."""
        self._known = []


def _take_away(one: _Set) -> None:
    hooks = one.hooks()
    if hooks is not None and len(hooks) == 1 and one.key in hooks:
        one.is_away = True
        del hooks[one.key]


def _put_back(one: _Set) -> None:
    hooks = one.hooks()
    if one.is_away and hooks is not None and one.key not in hooks:
        hooks[one.key] = one.hook
        hooks.move_to_end(one.key, last=False)
    one.is_away = False
