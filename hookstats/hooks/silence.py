"""Silence: compiled code that calls watched modules and leaves nothing of the calls.

Whatever the reason - a dynamo that leaves the hooks out, a backend that drops the operators, a
transform of torch.func around the module - a step is closed, and compiled code has left nothing of
a module that it calls. It tells that it calls a module by a guard on the key of the module's hook,
which stands there once dynamo traced the hook. Where the hook was left out, a guard on the module's
class is all there is: it tells only where no module of the class was called, compiled or not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import CodeType

from torch import nn

from hookstats.arena.arena import Arena
from hookstats.hooks.dynamo import compiled_callers, compiled_hooks, described
from hookstats.hooks.widths import Sites
from hookstats.stats.warning import warn


@dataclass(frozen=True, eq=False)
class _Watched:
    """A watched module, which is not kept alive."""

    name: str
    cls: type[nn.Module]
    sites: list[Sites]

    def __str__(self) -> str:
        return f"{self.name!r} ({self.cls.__name__})"


class Silence:
    """Reports the watched modules of which compiled code leaves nothing, each once."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.failures: dict[str, str] = {}
        """What is not recorded, and the compiled code that leaves it out."""
        self._uncalled: defaultdict[type[nn.Module], list[_Watched]] = defaultdict(list)
        """By class, where no call of any of them was counted."""
        self._silent: list[_Watched] = []
        """Those of which compiled code has left nothing yet."""
        self._looks = 0

    def add(self, name: str, module: nn.Module, sites: list[Sites]) -> None:
        """Expect calls of `module`, which `sites`, also those added later, are to count."""
        watched = _Watched(name, type(module), sites)
        self._uncalled[watched.cls].append(watched)
        self._silent.append(watched)

    def look(self) -> None:
        """Warn if a recorded step ended in silence.

        Waits for the devices where compiled code calls modules. Looks after 1, 2, 4, 8, ...
        recorded steps, as modules that nothing calls stay silent for good.
        """
        self._looks += 1
        if self._looks & (self._looks - 1):
            return
        with self._arena.lock:
            called = [
                cls
                for cls, known in self._uncalled.items()
                if any(sites.called for one in known for sites in one.sites)
            ]
            traced = [one for one in self._silent if any(sites.traced for sites in one.sites)]
            heard = [one for one in traced if any(made.called_in_graphs for made in one.sites)]
        for cls in called:
            del self._uncalled[cls]
        self._drop(heard)
        self._look_at_classes()
        self._look_at_modules([one for one in traced if one in self._silent])

    def _drop(self, known: Collection[_Watched]) -> None:
        self._silent = [one for one in self._silent if one not in known]

    def _look_at_classes(self) -> None:
        """Report classes of which no call was counted, and which compiled code calls."""
        callers = list(compiled_callers(self._uncalled)) if self._uncalled else []
        if not callers:
            return
        found = set[type[nn.Module]]().union(*(called for _, called in callers))
        for cls in found:
            self._drop(self._uncalled.pop(cls))
        names = ", ".join(sorted(cls.__name__ for cls in found))
        where = _described(code for code, _ in callers)
        self.failures[f"recording {names} in compiled code"] = f"{where} left nothing"
        warn(
            f"hookstats: nothing is recorded of {names}: compiled code calls modules of these "
            f"classes and leaves nothing of the watched ones: {where}; they are recorded where "
            "they are not compiled"
        )

    def _look_at_modules(self, suspects: list[_Watched]) -> None:
        """Report those of which dynamo compiled calls, and did not only trace them."""
        keys = {sites.key: one for one in suspects for sites in one.sites}
        callers = [
            (code, [one for key, one in keys.items() if key in compiled])
            for code, compiled in (compiled_hooks() if keys else ())
        ]
        where = _described(code for code, silent in callers if silent)
        found = [one for one in suspects if any(one in silent for _, silent in callers)]
        if not found:
            return
        self._drop(found)
        names = _listed(map(str, found))
        short = _listed(repr(one.name) for one in found)
        self.failures[f"recording compiled calls of {short}"] = f"{where} leaves nothing of them"
        warn(
            f"hookstats: nothing is recorded of compiled calls of {names}: {where} leaves nothing "
            "of them; what is not compiled is recorded"
        )


def _described(codes: Iterable[CodeType]) -> str:
    return _listed(map(described, codes))


def _listed(names: Iterable[str]) -> str:
    """The first three of them."""
    every = list(names)
    return ", ".join(every[:3]) + ", ..." * (len(every) > 3)
