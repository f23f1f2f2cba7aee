"""HookToggle: takes the hooks off modules for as long as nothing is to be recorded.

A module with any hook takes torch's longer way through `Module.__call__`, whatever the hook does:
about a microsecond per call, which is most of what a step costs that is not recorded.

- Hooks go where a module has no others of their kind. Where others are, there is nothing to gain,
  and the order of all stays.
- When hooks return, they go before hooks that others added in the meantime.
- Dynamo bakes into compiled code which hooks there are. So no hook goes once anything is compiled;
  if something was compiled in the meantime, it is compiled again, with the hooks.
- Hooks come and go where steps end, so that a step has all hooks or none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from hookstats._torch import has_compiled
from hookstats.hooks.dynamo import reset_compiled

_Hooks = OrderedDict[int, Callable[..., Any]]


class HookToggle:
    """The hooks that a watch has set on modules; they are there at first."""

    def __init__(self) -> None:
        # Torch's dictionary of a module's hooks, and ours among these, by the dictionary's id.
        self._known: dict[int, tuple[Callable[[], _Hooks | None], _Hooks]] = {}
        self._types: set[type[nn.Module]] = set()
        self.there: bool | None = True
        """Whether the hooks are there; None where an interrupt came: the next call does it all."""

    def add(self, module: nn.Module, handles: Iterable[RemovableHandle]) -> None:
        """Have these hooks come and go, which were set on the module."""
        self._types.add(type(module))
        for handle in handles:
            hooks: _Hooks | None = handle.hooks_dict_ref()
            if hooks is None:
                continue
            known = self._known.get(id(hooks))
            if known is None or known[0]() is not hooks:
                known = self._known[id(hooks)] = handle.hooks_dict_ref, OrderedDict()
            known[1][handle.id] = hooks[handle.id]

    def set(self, there: bool) -> None:
        """Have the hooks be there, or not where they may go."""
        if there is self.there or (not there and has_compiled()):
            return
        self.there = None
        away = False
        for hooks_of, ours in self._known.values():
            hooks = hooks_of()
            if hooks is None:
                continue
            if not there and hooks.keys() == ours.keys():
                hooks.clear()
            elif there and ours.keys() - hooks.keys():
                away = True
                for key in reversed(ours):
                    hooks[key] = ours[key]
                    hooks.move_to_end(key, last=False)
        if away and has_compiled():
            reset_compiled(self._types)
        self.there = there

    def end(self) -> None:
        """Have no hook come back."""
        self._known = {}
